"""Checks of a desktop's state for our own tasks, which need none of OSWorld's evaluators.

`{"checks": [{"kind": "file_text", "path": "~/notes.txt", "text": "milk"}, ...]}` holds if every check does. A check
with `"not": true` holds if the state is another. A task's score is the share of its checks that hold.
"""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from zipfile import ZipFile

from openpyxl import load_workbook

from rlanything.domains.osworld.desktops.client import Guest

LARGEST_WORKBOOK = 2**20  # bytes; it is the agent's, and reading it takes seconds a megabyte
LARGEST_UNPACKED = 8 * 2**20  # bytes of all its parts
Check = Mapping[str, Any]
_Holds = Callable[[Guest, Check], Awaitable[bool]]


async def share(guest: Guest, checks: list[Check]) -> float:
    """Share of the checks that hold. Raises DesktopFault."""
    held = [await KINDS[check["kind"]][1](guest, check) is not bool(check.get("not")) for check in checks]
    return sum(held) / len(held)


async def _exists(guest: Guest, check: Check) -> bool:
    return (await guest.execute(["test", "-e", check["path"]])).returncode == 0


async def _file_text(guest: Guest, check: Check) -> bool:
    content = await guest.download(check["path"])
    return content is not None and _plain(content.decode(errors="replace")) == _plain(check["text"])


async def _file_contains(guest: Guest, check: Check) -> bool:
    content = await guest.download(check["path"])
    return content is not None and check["text"] in content.decode(errors="replace")


async def _command(guest: Guest, check: Check) -> bool:
    done = await guest.execute(check["command"], shell=isinstance(check["command"], str))
    return _plain(done.output) == _plain(check["output"])


async def _json(guest: Guest, check: Check) -> bool:
    content = await guest.download(check["path"])
    try:
        found = json.loads(content or b"")
        for key in check["key"].split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):  # the agent wrote the file
        return False
    return bool(found == check["value"]) and isinstance(found, bool) is isinstance(check["value"], bool)


async def _cell(guest: Guest, check: Check) -> bool:
    """A cell of a workbook, by its cached value: the program that saved it has computed it."""
    content, wanted = await guest.download(check["path"]), check["value"]
    if content is None or len(content) > LARGEST_WORKBOOK:
        return False
    found = await asyncio.to_thread(_value, content, check.get("sheet"), check["cell"])
    if isinstance(found, bool) is not isinstance(wanted, bool):  # True == 1
        return False
    if isinstance(found, (int, float)) and isinstance(wanted, (int, float)):
        return abs(found - wanted) < 1e-9 * max(1.0, abs(wanted))
    return bool(found == wanted)


def _value(content: bytes, sheet: str | None, cell: str) -> Any:
    """A cell's value; None if there is none."""
    try:
        if sum(part.file_size for part in ZipFile(io.BytesIO(content)).infolist()) > LARGEST_UNPACKED:
            return None
        book = load_workbook(io.BytesIO(content), data_only=True, read_only=True)
        return (book[sheet] if sheet else book.active)[cell].value
    except Exception:  # the agent wrote the file: openpyxl raises errors of any kind for one made to break it
        return None


def _plain(text: str) -> str:
    """A text without white space at the ends of its lines, and of itself: editors add some."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


KINDS: Mapping[str, tuple[tuple[str, ...], _Holds]] = {
    "exists": (("path",), _exists),
    "file_text": (("path", "text"), _file_text),
    "file_contains": (("path", "text"), _file_contains),
    "command": (("command", "output"), _command),
    "json": (("path", "key", "value"), _json),
    "cell": (("path", "cell", "value"), _cell),
}
"""Kinds of checks: the fields that each needs, and the function that tells whether it holds."""
FIELDS: Mapping[str, tuple[type, ...]] = {"command": (str, list), "value": (str, int, float, bool, type(None))}
"""Types that a field may have; the others hold texts."""

"""Sets a desktop up for a task of our own. Each step is checked: OSWorld's controller only logs one that fails."""

import asyncio
import base64
import io
import time
from collections.abc import Mapping, Sequence
from typing import Any

from openpyxl import Workbook

from rlanything.domains.osworld.desktops.client import DesktopFault, Guest

WINDOW_S = 60.0  # time that a window has to appear
FIRST_WINDOW_S = 20.0
DRAWN_S = 20.0  # time that a window has to be drawn, and its program to wait for input
POLL_S = 0.1


async def set_up(guest: Guest, steps: Sequence[Mapping[str, Any]]) -> None:
    """Take the steps. Raises DesktopFault, which names the step that failed."""
    for number, step in enumerate(steps, 1):
        try:
            await _take(guest, step["type"], step["parameters"])
        except DesktopFault as fault:
            raise DesktopFault(f"set-up step {number} ({step['type']}): {fault}") from fault


async def _take(guest: Guest, kind: str, given: Mapping[str, Any]) -> None:
    match kind:
        case "execute" | "command":
            done = await guest.execute(given["command"], bool(given.get("shell")))
            if done.returncode:
                raise DesktopFault(f"{given['command']} ended with {done.returncode}: {done.error.strip()[-300:]}")
        case "launch":
            await guest.launch(given["command"], bool(given.get("shell")))
        case "open":
            await guest.open(given["path"])
        case "write":
            await guest.upload(given["path"], _content(given))
        case "activate_window" | "close_window":
            what, flags = kind.removesuffix("_window"), (bool(given.get("strict")), bool(given.get("by_class")))
            await guest.window(what, given["window_name"], *flags)
        case "wait_window":
            await _wait(guest, given["title"])
        case "sleep":
            await asyncio.sleep(float(given["seconds"]))


def _content(given: Mapping[str, Any]) -> bytes:
    """The content that a `write` step writes: a `text`, the bytes of `base64`, or a workbook of `rows`."""
    if "rows" in given:
        book, content = Workbook(), io.BytesIO()
        for row in given["rows"]:
            book.active.append(row)
        book.save(content)
        return content.getvalue()
    return base64.b64decode(given["base64"]) if "base64" in given else str(given.get("text", "")).encode()


async def wait_until_drawn(guest: Guest, steps: Sequence[Mapping[str, Any]]) -> None:
    """Wait until a first window is drawn if a step starts a program: OSWorld's controller does not."""
    if not any(step["type"] in ("launch", "open", "chrome_open_tabs") for step in steps):
        return
    until = time.monotonic() + FIRST_WINDOW_S
    while time.monotonic() < until and not await _windows(guest):
        await asyncio.sleep(POLL_S)
    await guest.screenshot(DRAWN_S)


async def _windows(guest: Guest) -> list[str]:
    """The titles of all windows but the desktop's own."""
    rows = [line.split(None, 3) for line in (await guest.execute(["wmctrl", "-l"])).output.splitlines()]
    return [row[3] for row in rows if len(row) == 4 and row[1] != "-1"]


async def _wait(guest: Guest, title: str) -> None:
    """Wait for a window with this in its title, and bring it to the front."""
    until = time.monotonic() + WINDOW_S
    while time.monotonic() < until:
        if any(title.lower() in found.lower() for found in await _windows(guest)):
            await guest.window("activate", title)
            await guest.screenshot(DRAWN_S)
            return
        await asyncio.sleep(POLL_S)
    shown = ", ".join(await _windows(guest)) or "none"
    running = " ".join((await guest.execute(["ps", "-e", "-o", "comm="])).output.split())
    raise DesktopFault(f"no window {title!r} within {WINDOW_S:.0f} s; windows: {shown}; programs: {running}")

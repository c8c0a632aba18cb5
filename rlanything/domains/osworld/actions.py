"""Actions of an agent that sees a screen: the `computer_use` tool of Qwen's models. Pure: texts in, actions out.

A response says in one line what it does, then holds one tool call. Coordinates run from 0 to 999, whatever the size of
the screen. A response that cannot be read is an invalid action with a reason. It is never taken for another action.
Source: github.com/QwenLM/Qwen3-VL, cookbooks/computer_use, and the actions that newer agents of that family emit.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlanything.domains.answers import without_thoughts

TOOL = "computer_use"
LAST = 999  # the largest coordinate
MAX_PIXELS = 2000  # of one scroll; more is cut
MAX_WAIT_S = 10.0  # of one wait; more is cut
MAX_TEXT = 4096  # characters typed at once
TOLD = 60  # characters of a typed text that `in_words` tells

# Each action needs the arguments of its first tuple, and may have those of its second.
NEEDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "key": (("keys",), ()),
    "key_down": (("keys",), ()),
    "key_up": (("keys",), ()),
    "type": (("text",), ()),
    "mouse_move": (("coordinate",), ()),
    "left_click": ((), ("coordinate",)),
    "right_click": ((), ("coordinate",)),
    "middle_click": ((), ("coordinate",)),
    "double_click": ((), ("coordinate",)),
    "triple_click": ((), ("coordinate",)),
    "left_click_drag": (("coordinate",), ()),
    "scroll": (("pixels",), ("coordinate",)),
    "hscroll": (("pixels",), ("coordinate",)),
    "wait": (("time",), ()),
    "terminate": (("status",), ()),
}
STATUSES = ("success", "failure")

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789`-=[]\\;',./"
_SHIFTED = dict(zip('~!@#$%^&*()_+{}|:"<>?', "`1234567890-=[]\\;',./", strict=True))  # of an American keyboard
_NAMED = (
    "enter tab space backspace delete escape up down left right home end pageup pagedown insert shift ctrl alt win "
    "capslock numlock printscreen pause menu"
).split() + [f"f{n}" for n in range(1, 25)]
KEYS = frozenset((*_LETTERS, *_NAMED))
ALIASES = {
    "return": "enter", "esc": "escape", "del": "delete", "ins": "insert", "bksp": "backspace", "control": "ctrl",
    "cmd": "win", "command": "win", "super": "win", "meta": "win", "option": "alt", "spacebar": "space", " ": "space",
    "page_up": "pageup", "pgup": "pageup", "prior": "pageup", "page_down": "pagedown", "pgdn": "pagedown",
    "next": "pagedown", "arrowup": "up", "arrowdown": "down", "arrowleft": "left", "arrowright": "right",
    "print": "printscreen", "caps_lock": "capslock", "num_lock": "numlock", "plus": "+", "minus": "-", "apps": "menu",
}  # fmt: skip
OPEN, CLOSE = "<tool_call>", "</tool_call>"


class InvalidAction(ValueError):
    """A response that holds no action; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One action. Fields that its kind does not have are None."""

    kind: str
    """One of NEEDS."""
    coordinate: tuple[int, int] | None = None
    """(x, y), each from 0 to LAST."""
    keys: tuple[str, ...] | None = None
    """Names of KEYS, pressed together."""
    text: str | None = None
    pixels: int | None = None
    """Upwards, or to the right, if it is above 0."""
    time: float | None = None
    """Seconds to wait."""
    status: str | None = None
    """The agent's word on the task, success or failure, with which it ends the episode."""

    def point(self, width: int, height: int) -> tuple[int, int] | None:
        """The pixel that the coordinate means on a screen of this size."""
        if self.coordinate is None:
            return None
        x, y = self.coordinate
        return min(x * width // LAST, width - 1), min(y * height // LAST, height - 1)

    def to_json(self) -> str:
        """The arguments of the tool call, as an environment gets them."""
        given = {k: v for k, v in asdict(self).items() if v is not None and k != "kind"}
        return json.dumps({"action": self.kind, **given}, ensure_ascii=False)


def call_text(action: Action) -> str:
    """The tool call that means an action, as models write it."""
    return f'{OPEN}\n{{"name": "{TOOL}", "arguments": {action.to_json()}}}\n{CLOSE}'


def in_words(action: Action) -> str:
    """Say in a few words on one line what an action does."""
    text = " ".join((action.text or "").split())
    told = [f'"{text[:TOLD]}{"..." if len(text) > TOLD else ""}"'] if text else []
    told += ["+".join(action.keys)] if action.keys else []
    told += [f"at {action.coordinate[0]}, {action.coordinate[1]}"] if action.coordinate else []
    told += [f"{value:g}" for value in (action.pixels, action.time) if value is not None]
    return " ".join([action.kind.replace("_", " "), *told, *([action.status] if action.status else [])])


def spoken(text: str) -> str:
    """The line with which a response says what it does: the text between its thoughts and the tool call."""
    said = without_thoughts(text).partition(OPEN)[0]
    return " ".join(said.split()).removeprefix("Action:").strip()


def read_response(text: str) -> Action:
    """The action of a response. Raises InvalidAction."""
    _, opened, rest = without_thoughts(text).partition(OPEN)
    if not opened:
        raise InvalidAction("no tool call")
    try:
        call, end = json.JSONDecoder().raw_decode(rest, len(rest) - len(rest.lstrip()))
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise InvalidAction(f"the tool call is no JSON ({str(error)[:80]})") from error
    after = rest[end:].lstrip()
    if not after.startswith(CLOSE):
        raise InvalidAction("the tool call is not closed")
    if OPEN in after:
        raise InvalidAction("more than one tool call")
    if not isinstance(call, dict) or call.get("name") != TOOL or not isinstance(arguments, dict):
        raise InvalidAction(f'expected {{"name": "{TOOL}", "arguments": {{...}}}}')
    return read_arguments(arguments)


def read_typed(text: str) -> Action:
    """The action that a person types: a kind, then what it needs, as in `scroll -5 500 300`. Raises InvalidAction."""
    kind, _, rest = text.strip().partition(" ")
    arguments: dict[str, Any] = {"action": kind}
    needed = NEEDS.get(kind, ((), ()))[0]
    words = [rest] if needed == ("text",) else rest.split()
    if needed and needed != ("coordinate",) and words:
        first = words.pop(0)
        arguments[needed[0]] = first if needed[0] in ("text", "keys", "status") else _number(first)
    if words:
        arguments["coordinate"] = [_number(word) for word in words]
    return read_arguments(arguments)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise InvalidAction(f"found {word!r}, expected a number") from error


def read_arguments(arguments: Mapping[str, Any]) -> Action:
    """The action that the arguments of a tool call mean. Raises InvalidAction."""
    kind = arguments.get("action")
    if not isinstance(kind, str) or kind not in NEEDS:
        raise InvalidAction(f"action: found {kind!r:.60}, expected one of {', '.join(NEEDS)}")
    needed, optional = NEEDS[kind]
    values: dict[str, Any] = {}
    for name in (*needed, *optional):
        value = arguments.get(name)
        if value is not None:
            values[name] = _READERS[name](value)
        elif name in needed:
            raise InvalidAction(f"{kind}: {name} is missing")
    return Action(kind=kind, **values)


def _coordinate(value: Any) -> tuple[int, int]:
    if not (
        isinstance(value, list | tuple) and len(value) == 2 and all(_is_number(v) and 0 <= v <= LAST + 1 for v in value)
    ):
        raise InvalidAction(f"coordinate: found {value!r:.60}, expected two numbers from 0 to {LAST}")
    x, y = (min(int(v), LAST) for v in value)  # 1000 is the edge where models count to 1000
    return x, y


def _keys(value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not (isinstance(given, list | tuple) and given and all(isinstance(key, str) and key for key in given)):
        raise InvalidAction(f"keys: found {value!r:.60}, expected a list of names")
    parts = [part for key in given for part in _parts(key)]
    capital = len(parts) == 1 and len(parts[0]) == 1 and parts[0].isupper()  # but "ctrl+A" means ctrl and the key a
    keys = [*(["shift"] if capital else []), *(key for part in parts for key in _key(part))]
    return tuple(dict.fromkeys(keys))


def _parts(key: str) -> list[str]:
    """The keys of a combination such as "ctrl+shift+t"; "+" alone is a key."""
    return [key] if len(key) == 1 else [part for part in re.split(r"\+(?!$)", key) if part]


def _key(name: str) -> list[str]:
    """The keys that make one name: a character above another one needs shift, too."""
    lowered = name.strip().lower() if len(name) > 1 else name.lower()
    plain = lowered.removesuffix("_l").removesuffix("_r")
    plain = ALIASES.get(plain, plain)
    if plain in _SHIFTED:
        return ["shift", _SHIFTED[plain]]
    if plain in KEYS:
        return [plain]
    if len(plain) == 1:
        raise InvalidAction(f"keys: found {name!r}, expected a key of an American keyboard; type types any character")
    raise InvalidAction(f"keys: found {name!r:.40}, expected the name of a key")


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidAction(f"text: found {value!r:.60}, expected a text")
    if not _is_unicode(value):
        raise InvalidAction("text: found half of a surrogate pair, expected whole characters")
    if len(value) > MAX_TEXT:
        raise InvalidAction(f"text: found {len(value)} characters, expected at most {MAX_TEXT}")
    if found := next((c for c in value if unicodedata.category(c) == "Cc" and c not in "\t\n\r"), ""):
        raise InvalidAction(
            f"text: found {found!r}, which no keyboard types; the action key presses keys by their names"
        )
    return value


def _is_unicode(text: str) -> bool:
    """False if a text has half a character, which JSON can write and no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pixels(value: Any) -> int:
    if not _is_number(value):
        raise InvalidAction(f"pixels: found {value!r:.60}, expected a number")
    return int(max(-MAX_PIXELS, min(MAX_PIXELS, value)))


def _time(value: Any) -> float:
    if not _is_number(value) or value < 0:
        raise InvalidAction(f"time: found {value!r:.60}, expected seconds")
    return float(min(MAX_WAIT_S, value))


def _status(value: Any) -> str:
    if value not in STATUSES:
        raise InvalidAction(f"status: found {value!r:.60}, expected success or failure")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9  # nan is not below


_READERS = {
    "coordinate": _coordinate, "keys": _keys, "text": _text, "pixels": _pixels, "time": _time, "status": _status,
}  # fmt: skip

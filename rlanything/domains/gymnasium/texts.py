"""Gymnasium's observations and actions as text, and back."""

import enum
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlanything.domains.answers import choose
from rlanything.domains.foreign import shown

# gymnasium/utils/colorize.py: a highlight has 10 more than the colour of a text.
COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
_COLOURED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m", re.DOTALL)
# Environments of the library itself whose documentation alone says what the numbers mean.
NAMES = {
    "FrozenLake": ("left", "down", "right", "up"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
    "CliffWalking": ("up", "right", "down", "left"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "MountainCar": ("left", "none", "right"),
}


def without_colours(text: str) -> str:
    """A picture of characters without escape codes: a coloured part is followed by its colour, because it may be all
    that tells an agent from a tile."""

    def named(found: re.Match[str]) -> str:
        for code in map(int, filter(None, found[1].split(";"))):
            if 0 <= code % 10 < len(COLOURS) and code // 10 in (3, 4):
                return f"{found[2]}({'on ' if code >= 40 else ''}{COLOURS[code % 10]})"
        return found[2]

    return _COLOURED.sub(named, text).strip("\n")


def plain(value: Any) -> Any:
    """An element of a space as JSON has it. Raises TypeError if it has no such form."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{type(value).__name__} has no form as text")


def observed(env: Any, observation: Any, template: str) -> str:
    """The text of an observation: by the template if there is one, else the environment's own picture of characters,
    else as `foreign.shown` has it. Raises TypeError, KeyError, ValueError or IndexError if it cannot be written so."""
    drawn = env.render() if env.render_mode == "ansi" else ""
    picture = without_colours(drawn) if isinstance(drawn, str) else ""
    return picture if picture and not template else shown(template, plain(observation), picture=picture)


def action_names(env: Any, given: Sequence[str]) -> tuple[str, ...]:
    """Names of the actions of a discrete space, in its order; empty for other spaces.

    They are `given`, or an enumeration `actions` of the environment's, or what the library documents, or numbers.
    """
    from gymnasium import spaces

    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        return ()
    if given:
        return tuple(given)
    kind = getattr(env.unwrapped, "actions", None)
    if inspect.isclass(kind) and issubclass(kind, enum.IntEnum):
        called = {int(action): action.name for action in kind}
        if all(space.start + i in called for i in range(space.n)):  # it may name more than the space has
            return tuple(called[space.start + i] for i in range(space.n))
    name = env.spec.id.rpartition("/")[2].partition("-")[0] if env.spec else ""
    known = next((names for start, names in NAMES.items() if name.startswith(start)), ())
    return known if len(known) == space.n else tuple(str(space.start + i) for i in range(space.n))


def read_action(space: Any, names: Sequence[str], text: str) -> Any:
    """The element of the action space that a text means. Raises ValueError, which says why it means none."""
    from gymnasium import spaces

    if names:
        name = choose(text, names, numbered=False)
        if name is None:
            raise ValueError(f"{text!r}, expected one of {', '.join(names)}")
        return space.start + names.index(name)
    value: Any = text
    if not isinstance(space, spaces.Text):
        try:
            value = json.loads(text)
        except ValueError:
            raise ValueError(f"{text!r} is no JSON; expected an element of {space}") from None
    if isinstance(space, spaces.Box):
        try:
            value = np.asarray(value, space.dtype)
        except (ValueError, TypeError):
            raise ValueError(f"{text!r}, expected numbers of the shape {space.shape}") from None
    if not space.contains(value):
        raise ValueError(f"{text!r} is no element of {space}")
    return value

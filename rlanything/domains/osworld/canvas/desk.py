"""The state of a drawn desktop."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations
from typing import NamedTuple

from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.words import TRASH

WIDTH, HEIGHT = 192, 160  # [pixels]
PAGE = 3  # files on one page of the list
NUM_OFFSET = 24  # places whose position varies


class Kind(StrEnum):
    """Kinds of widgets."""

    ICON = "icon"
    DOCUMENT = "document"
    CLOSE = "close"
    TAB = "tab"
    SWITCH = "switch"
    CHECK = "check"
    SLIDER = "slider"
    LESS = "less"
    MORE = "more"
    OPTION = "option"
    LIST = "list"
    ITEM = "item"
    BUTTON = "button"
    FILE = "file"
    FIELD = "field"


class Widget(NamedTuple):
    """Something on the screen that can be clicked: centre and size in pixels."""

    kind: Kind
    name: str
    """The agent calls it by this name. The buttons of a spinner have the spinner's name and a sign: "Zoom +"."""
    x: int
    y: int
    width: int
    height: int

    def covers(self, x: int, y: int) -> bool:
        """True if a pixel belongs to it."""
        return abs(x - self.x) <= self.width / 2 + 1 and abs(y - self.y) <= self.height / 2 + 1


@dataclass
class Dialog:
    """A window that must be answered first: `rename`, `delete`, or `notice`, which only waits for OK."""

    kind: str
    text: str = ""
    focused: bool = False
    replaces: bool = False
    """True if a click has selected the text: typing then replaces it."""


@dataclass
class Look:
    """The look of a desktop, which means nothing for its tasks: colours, order, small shifts."""

    offsets: list[tuple[int, int]]
    background: int
    """Number of the background colour."""
    accent: tuple[int, int, int]
    flipped: bool
    """Cancel stands to the left of OK."""


class Desk:
    """A desktop with three programs, of which one may be open.

    `busy` counts the actions that are lost while "Loading..." is shown. `seen` are the pages of the list of files that
    were on the screen since Files was opened.
    """

    def __init__(self, rng: random.Random, *, jitter: int, num_icon: int, num_file: int, unseen: bool = False) -> None:
        """`jitter` [pixels] shifts what is on the screen; `num_icon` counts programs, decorations and documents.

        `unseen` desktops have a background, an order of the tabs of Settings and an order of the buttons of Files that
        no other desktop has.
        """
        spread = [(rng.randint(-jitter, jitter), rng.randint(-jitter, jitter)) for _ in range(NUM_OFFSET)]
        accent = (rng.randint(20, 90), rng.randint(60, 130), rng.randint(150, 220))
        self.look = Look(spread, 4 if unseen else rng.randrange(4), accent, rng.random() < 0.5)
        num_decoration = max(0, min(2, num_icon - 4))
        self.icons = [*words.PROGRAMS, TRASH, *rng.sample(words.DECORATIONS, num_decoration)]
        self.documents = rng.sample(words.FILES, max(0, min(2, num_icon - 6)))
        self.cells = rng.sample(range(9), len(self.icons) + len(self.documents))  # of a grid of 3 x 3
        self.tabs = {tab: rng.sample(controls, 3) for tab, controls in words.TABS.items()}
        self.tab_order = rng.choice([tabs for tabs in permutations(words.TABS) if (tabs[0] == "Display") is unseen])
        self.toolbar = words.TOOLS[::-1] if unseen else words.TOOLS
        self.switched = {name: rng.random() < 0.5 for name in (*words.SWITCHES, *words.CHECKS)}
        self.number = {name: rng.randint(0, words.TOP) for name in (*words.SLIDERS, *words.SPINNERS)}
        self.choice = {name: rng.choice(choices) for name, choices in words.CHOICES.items()}
        self.files = rng.sample(words.FILES, num_file)
        self.fields = rng.sample(words.FIELDS, 2)
        self.typed = dict.fromkeys(self.fields, "")
        self.program: str | None = None
        self.tab, self.page = self.tab_order[0], 0
        self.seen = frozenset[int]()
        self.selected: str | None = None  # file
        self.opened: str | None = None  # file that the viewer shows
        self.menu: str | None = None  # list that is folded out
        self.dialog: Dialog | None = None
        self.focus: str | None = None  # field
        self.replaces = False
        self.sent: dict[str, str] | None = None
        self.trash: list[str] = []  # documents
        self.deleted: list[str] = []  # first names of files
        self.renamed: dict[str, str] = {}  # first name of a renamed file, by its present one
        self.held: str | None = None  # document under the pointer
        self.pointer: tuple[int, int] | None = None
        self.busy = 0

    def clone(self) -> Desk:
        """A desktop in the same state."""
        other = copy.copy(self)
        for name in (
            "documents",
            "cells",
            "switched",
            "number",
            "choice",
            "files",
            "typed",
            "trash",
            "deleted",
            "renamed",
        ):
            setattr(other, name, getattr(self, name).copy())
        other.dialog = copy.copy(self.dialog)
        return other

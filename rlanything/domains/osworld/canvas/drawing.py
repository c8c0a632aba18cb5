"""Draws a drawn desktop. Pillow draws every word and icon once; numpy puts them together.

A pixel is the number of its colour: a third of the bytes to fill and to compress.
"""

import random
import struct
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.desk import HEIGHT, PAGE, WIDTH, Desk, Kind, Widget
from rlanything.domains.osworld.canvas.layout import NOTCH, below, label_x, on_top, slider_start

BACKGROUNDS = ((236, 236, 240), (222, 230, 240), (240, 234, 222), (226, 240, 228), (206, 196, 214))
BACKGROUND, ACCENT = 0, 1  # a desk's own colours come first
INK, EDGE, WHITE, GREY, BLACK, PAPER, BAR, LINE, KEY, TAB, BUTTON, SENT, HELD, MARKED, CLOSE = range(2, 17)
COLOURS = (  # of these numbers; those of the icons follow
    (20, 20, 20), (90, 90, 90), (255, 255, 255), (170, 170, 170), (0, 0, 0), (250, 250, 250), (200, 200, 200),
    (120, 120, 120), (210, 210, 210), (190, 190, 190), (205, 215, 225), (0, 120, 0), (250, 220, 120), (160, 190, 250),
    (200, 60, 50),
)  # fmt: skip
TEXT_HEIGHT, LETTER = 11, 6  # [pixels] of Pillow's bitmap font
TITLES = {"rename": "New name", "notice": "Update ready"}


class Picture(NamedTuple):
    """A screen."""

    numbers: np.ndarray
    """[HEIGHT, WIDTH] bytes: the number of each pixel's colour."""
    colours: np.ndarray
    """[number, 3] bytes: red, green and blue of each colour."""

    @property
    def pixels(self) -> np.ndarray:
        """[HEIGHT, WIDTH, 3] bytes: red, green and blue of each pixel."""
        return self.colours[self.numbers]


class Canvas:
    """A screen in the making: an array [HEIGHT, WIDTH] of the numbers of colours."""

    def __init__(self) -> None:
        self.pixels = np.full((HEIGHT, WIDTH), BACKGROUND, np.uint8)

    def box(self, x: int, y: int, width: int, height: int, fill: int, edge: int = EDGE) -> None:
        """A filled rectangle around a centre."""
        left, top = max(0, x - width // 2), max(0, y - height // 2)
        right, bottom = min(WIDTH, x + width // 2), min(HEIGHT, y + height // 2)
        self.pixels[top:bottom, left:right] = edge
        self.pixels[top + 1 : bottom - 1, left + 1 : right - 1] = fill

    def text(self, x: int, y: int, text: str, colour: int = INK) -> None:
        """A text that begins at x, around the height y."""
        mask = _text_mask(text)
        left, top = max(0, x), max(0, y - TEXT_HEIGHT // 2)
        mask = mask[: HEIGHT - top, : WIDTH - left]
        self.pixels[top : top + mask.shape[0], left : left + mask.shape[1]][mask] = colour

    def centred(self, x: int, y: int, text: str, colour: int = INK) -> None:
        """A text around a centre."""
        self.text(x - _text_mask(text).shape[1] // 2, y, text, colour)


def draw(desk: Desk) -> Picture:
    """Draw the screen."""
    canvas, (icons, _) = Canvas(), _icons()
    own = np.array([BACKGROUNDS[desk.look.background], desk.look.accent], np.uint8)
    picture = Picture(canvas.pixels, np.concatenate([own, icons]))
    if desk.busy:
        canvas.centred(WIDTH // 2, HEIGHT // 2, "Loading...")
        return picture
    if desk.program:
        canvas.pixels[:24] = ACCENT
        canvas.text(8, 12, (desk.opened or "") if desk.program == "Viewer" else desk.program, WHITE)
    for widget in below(desk):
        _DRAWN[widget.kind](canvas, desk, widget)
    _decorate(canvas, desk)
    if desk.dialog:
        dx, dy = desk.look.offsets[11]
        canvas.box(96 + dx, 86 + dy, 168, 96, PAPER)
        canvas.centred(96 + dx, 56 + dy, TITLES.get(desk.dialog.kind, f"Delete {desk.selected}?"))
    if desk.dialog or desk.menu:
        for widget in on_top(desk):
            _DRAWN[widget.kind](canvas, desk, widget)
    return picture


def png(picture: Picture) -> bytes:
    """Return a picture as a PNG file with a palette. Rows have no filter: flat areas compress without one, too."""
    rows = np.zeros((HEIGHT, 1 + WIDTH), np.uint8)  # the first byte of a row names its filter: 0 is none
    rows[:, 1:] = picture.numbers
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    palette, data = (b"PLTE", picture.colours.tobytes()), (b"IDAT", zlib.compress(rows.tobytes(), 1))
    chunks = ((b"IHDR", header), palette, data, (b"IEND", b""))
    written = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


@lru_cache(None)
def _text_mask(text: str) -> np.ndarray:
    font, text = ImageFont.load_default_imagefont(), text.encode("latin-1", "replace").decode("latin-1")  # all it has
    image = Image.new("L", (max(1, int(font.getbbox(text)[2])), TEXT_HEIGHT), 0)
    ImageDraw.Draw(image).text((0, 0), text, font=font, fill=255)
    return np.asarray(image) > 127


@lru_cache(None)
def _icons() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The colours that all desks have [number, 3], and of each icon the numbers of its colours [22, 22]."""
    colours, icons = [(0, 0, 0), (0, 0, 0), *COLOURS], {}
    for name in (*words.PROGRAMS, words.TRASH, *words.DECORATIONS):
        found, numbers = np.unique(_icon(name).reshape(-1, 3), axis=0, return_inverse=True)
        icons[name] = (numbers.reshape(22, 22) + len(colours)).astype(np.uint8)
        colours += [tuple(colour) for colour in found]
    return np.array(colours[2:], np.uint8), icons


def _icon(name: str) -> np.ndarray:
    """A picture of 22 x 22 pixels that depends on the name alone."""
    rng = random.Random(name)
    image = Image.new("RGB", (22, 22), (rng.randint(30, 200), rng.randint(30, 200), rng.randint(30, 200)))
    pen = ImageDraw.Draw(image)
    for _ in range(3):
        x, y = rng.randint(0, 14), rng.randint(0, 14)
        colour = (rng.randint(0, 255), rng.randint(0, 255), rng.randint(0, 255))
        shape = pen.ellipse if rng.random() < 0.5 else pen.rectangle
        shape((x, y, x + rng.randint(4, 9), y + rng.randint(4, 9)), fill=colour)
    return np.asarray(image)


def _decorate(canvas: Canvas, desk: Desk) -> None:
    """Draw the things that cannot be clicked: a scroll bar, the lines of a document, a receipt."""
    if desk.program == "Files" and len(desk.files) > PAGE:
        canvas.pixels[68:156, 184:190] = BAR
        canvas.pixels[68 + 44 * desk.page : 112 + 44 * desk.page, 184:190] = EDGE
    if desk.program == "Viewer":
        for y in range(50, 140, 12):
            canvas.pixels[y : y + 2, 20 : 170 - (y * 7) % 50] = GREY
    if desk.program == "Form" and desk.sent:
        canvas.centred(WIDTH // 2, 116, "Sent", SENT)


def _place(canvas: Canvas, desk: Desk, w: Widget) -> None:
    if desk.held == w.name:
        canvas.box(w.x, w.y, w.width + 6, w.height + 2, HELD)
    if w.kind is Kind.ICON:
        canvas.pixels[w.y - 18 : w.y + 4, w.x - 11 : w.x + 11] = _icons()[1][w.name]
    else:
        canvas.box(w.x, w.y - 8, 16, 20, WHITE)
    canvas.centred(w.x, w.y + 12, w.name)


def _close(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.box(w.x, w.y, w.width, w.height, CLOSE)
    canvas.centred(w.x, w.y, "x", WHITE)


def _tab(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.box(w.x, w.y, w.width, w.height, WHITE if w.name == desk.tab else TAB)
    canvas.centred(w.x, w.y, w.name)


def _switch(canvas: Canvas, desk: Desk, w: Widget) -> None:
    on = desk.switched[w.name]
    canvas.text(label_x(w), w.y, w.name)
    canvas.box(w.x, w.y, w.width, w.height, ACCENT if on else GREY)
    canvas.box(w.x + (7 if on else -7), w.y, 14, 14, WHITE)


def _check(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.text(label_x(w), w.y, w.name)
    canvas.box(w.x, w.y, w.width, w.height, WHITE)
    if desk.switched[w.name]:
        canvas.box(w.x, w.y, 8, 8, ACCENT)


def _slider(canvas: Canvas, desk: Desk, w: Widget) -> None:
    start = slider_start(w)
    canvas.text(label_x(w), w.y, w.name)
    canvas.pixels[w.y - 1 : w.y + 2, start : start + NOTCH * words.TOP] = LINE
    for number in range(words.TOP + 1):
        canvas.pixels[w.y - 3 : w.y + 4, start + NOTCH * number] = LINE
    canvas.box(start + NOTCH * desk.number[w.name], w.y, 10, 16, ACCENT)


def _less(canvas: Canvas, desk: Desk, w: Widget) -> None:
    control = w.name[:-2]
    canvas.text(label_x(w), w.y, control)
    canvas.box(w.x, w.y, w.width, w.height, KEY)
    canvas.centred(w.x, w.y, "-")
    canvas.centred(w.x + 26, w.y, str(desk.number[control]))


def _more(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.box(w.x, w.y, w.width, w.height, KEY)
    canvas.centred(w.x, w.y, "+")


def _option(canvas: Canvas, desk: Desk, w: Widget) -> None:
    if w.name == words.CHOICES[words.THEME][0]:
        canvas.text(w.x - 84, w.y, words.THEME)
    canvas.box(w.x - 18, w.y, 10, 10, WHITE)
    if desk.choice[words.THEME] == w.name:
        canvas.box(w.x - 18, w.y, 6, 6, ACCENT, ACCENT)
    canvas.text(w.x - 10, w.y, w.name)


def _list(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.text(label_x(w), w.y, w.name)
    canvas.box(w.x, w.y, w.width, w.height, WHITE)
    canvas.text(w.x - 28, w.y, desk.choice[w.name])
    canvas.centred(w.x + 25, w.y, "v")


def _item(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.box(w.x, w.y, w.width, w.height, WHITE)
    canvas.centred(w.x, w.y, w.name)


def _button(canvas: Canvas, desk: Desk, w: Widget) -> None:
    canvas.box(w.x, w.y, w.width, w.height, BUTTON)
    canvas.centred(w.x, w.y, w.name)


def _file(canvas: Canvas, desk: Desk, w: Widget) -> None:
    selected = desk.selected == w.name
    if selected:
        canvas.box(w.x, w.y, w.width, w.height, ACCENT, ACCENT)
    canvas.box(w.x - 64, w.y, 10, 12, WHITE)
    canvas.text(label_x(w), w.y, w.name, WHITE if selected else INK)


def _field(canvas: Canvas, desk: Desk, w: Widget) -> None:
    if desk.dialog and w.name == words.NEW_NAME:
        text, focused, replaces = desk.dialog.text, desk.dialog.focused, desk.dialog.replaces
    else:
        text, focused = desk.typed[w.name], desk.focus == w.name
        replaces = desk.replaces
        canvas.text(label_x(w), w.y, w.name)
    start = w.x - w.width // 2 + 4
    canvas.box(w.x, w.y, w.width, w.height, WHITE, ACCENT if focused else EDGE)
    if focused and replaces and text:
        canvas.box(start + LETTER // 2 * len(text), w.y, LETTER * len(text), 12, MARKED, MARKED)
    canvas.text(start, w.y, text)
    if focused:
        caret = start + 1 + LETTER * len(text)
        canvas.pixels[w.y - 6 : w.y + 6, caret : caret + 2] = BLACK


_DRAWN: dict[Kind, Callable[[Canvas, Desk, Widget], None]] = {
    Kind.ICON: _place, Kind.DOCUMENT: _place, Kind.CLOSE: _close, Kind.TAB: _tab, Kind.SWITCH: _switch,
    Kind.CHECK: _check, Kind.SLIDER: _slider, Kind.LESS: _less, Kind.MORE: _more, Kind.OPTION: _option,
    Kind.LIST: _list, Kind.ITEM: _item, Kind.BUTTON: _button, Kind.FILE: _file, Kind.FIELD: _field,
}  # fmt: skip

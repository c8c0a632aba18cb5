"""Types any text exactly, with the keyboard events of an X server's test extension.

A character without a key is bound to a spare key, on both levels: a key that holds one capital alone types the small
letter. (pyautogui drops such characters, and xdotool types small letters for them and no line breaks into editors.)
The module runs in our guests' server, and by `python -c` in others: it needs python-xlib alone.
"""

import sys
import time

from Xlib import XK, X, display
from Xlib.ext import xtest

DELAY_S = 0.005  # between two keys; programs lose keys that come faster
BOUND_S = 0.15  # programs read the new binding when its notice reaches them
CONTROLS = {"\n": XK.XK_Return, "\r": XK.XK_Return, "\t": XK.XK_Tab}


def keysym(character: str) -> int:
    """The X key symbol of a character."""
    code = ord(character)
    if character in CONTROLS:
        return CONTROLS[character]
    return code if 0x20 <= code <= 0x7E or 0xA0 <= code <= 0xFF else 0x01000000 | code


def type_text(connection: display.Display, text: str) -> None:
    """Type a text into the window that has the focus."""
    text = text.replace("\r\n", "\n")
    first = connection.display.info.min_keycode
    count = connection.display.info.max_keycode - first + 1
    rows = [list(row) for row in connection.get_keyboard_mapping(first, count)]
    keys: dict[int, tuple[int, bool]] = {}  # (key code, True if shift is held) of each symbol
    for code, row in enumerate(rows, first):
        for level in (1, 0):
            if len(row) > level and row[level]:
                keys[row[level]] = (code, level == 1)
    spare = [code for code, row in enumerate(rows, first) if not any(row)]
    shift = connection.keysym_to_keycode(XK.XK_Shift_L)
    used: set[int] = set()
    try:
        position = 0
        while position < len(text):
            bound: dict[int, int] = {}
            stop = position
            while stop < len(text):
                symbol = keysym(text[stop])
                if symbol not in keys and symbol not in bound:
                    if len(bound) == len(spare):
                        break
                    bound[symbol] = spare[len(bound)]
                stop += 1
            if stop == position:
                raise RuntimeError("the keyboard has no spare key")
            bind(connection, bound, used)
            for character in text[position:stop]:
                code, shifted = keys.get(keysym(character)) or (bound[keysym(character)], False)
                press(connection, code, shift if shifted else None)
            if bound:
                time.sleep(BOUND_S)  # the last keys are read before their binding changes
            position = stop
    finally:
        for code in used:
            connection.change_keyboard_mapping(code, [(X.NoSymbol, X.NoSymbol)])
        connection.sync()


def bind(connection: display.Display, bound: dict[int, int], used: set[int]) -> None:
    """Bind symbols to keys, on both levels, and add the keys to `used`."""
    for symbol, code in bound.items():
        connection.change_keyboard_mapping(code, [(symbol, symbol)])
        used.add(code)
    if bound:
        connection.sync()
        time.sleep(BOUND_S)


def press(connection: display.Display, code: int, held: int | None) -> None:
    """Press and release a key, with another one held."""
    if held is not None:
        xtest.fake_input(connection, X.KeyPress, held)
    xtest.fake_input(connection, X.KeyPress, code)
    xtest.fake_input(connection, X.KeyRelease, code)
    if held is not None:
        xtest.fake_input(connection, X.KeyRelease, held)
    connection.sync()
    time.sleep(DELAY_S)


if __name__ == "__main__":
    type_text(display.Display(), sys.argv[1])

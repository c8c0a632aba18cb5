"""Pointer and key actions reach a window of a real desktop as the events that they name."""

from __future__ import annotations

import asyncio

import pytest
from desktop_world import needs_desktops, options

from rlanything.domains.osworld.actions import read_arguments
from rlanything.domains.osworld.desktops.backends import local

pytestmark = [pytest.mark.integration, needs_desktops]
WINDOW = """
import tkinter
root, log = tkinter.Tk(), open("/tmp/events", "a", buffering=1)
root.title("window.py")
root.attributes("-fullscreen", True)
for kind in ("ButtonPress", "ButtonRelease", "KeyPress", "KeyRelease"):
    def told(e, kind=kind):
        button = "Button" in kind
        print("shift" * (e.state & button), kind, e.num if button else e.keysym, e.x, e.y, file=log)
    root.bind_all(f"<{kind}>", told)
root.bind("<Map>", lambda e: root.after(500, root.focus_force))
root.mainloop()
"""
AT = {"coordinate": [500, 250]}  # pixel 960, 270 of 1920 x 1080
LOW = {"coordinate": [750, 500]}
# Tk tells the buttons 6 and 7 of a wheel as 4 and 5 with shift.


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"action": "left_click", **LOW}, ["ButtonPress 1 1441 540", "ButtonRelease 1 1441 540"]),
        ({"action": "left_click", **AT}, ["ButtonPress 1 960 270", "ButtonRelease 1 960 270"]),
        ({"action": "right_click", **AT}, ["ButtonPress 3 960 270", "ButtonRelease 3 960 270"]),
        ({"action": "middle_click", **AT}, ["ButtonPress 2 960 270", "ButtonRelease 2 960 270"]),
        ({"action": "double_click", **AT}, ["ButtonPress 1 960 270", "ButtonRelease 1 960 270"] * 2),
        ({"action": "triple_click", **AT}, ["ButtonPress 1 960 270", "ButtonRelease 1 960 270"] * 3),
        ({"action": "scroll", "pixels": -20, **LOW}, ["ButtonPress 5 1441 540", "ButtonRelease 5 1441 540"] * 2),
        ({"action": "scroll", "pixels": 10, **AT}, ["ButtonPress 4 960 270", "ButtonRelease 4 960 270"]),
        (
            {"action": "hscroll", "pixels": 10, **LOW},
            ["shift ButtonPress 5 1441 540", "shift ButtonRelease 5 1441 540"],
        ),
        ({"action": "key_down", "keys": ["shift"]}, ["KeyPress Shift_L"]),
        ({"action": "key_up", "keys": ["shift"]}, ["KeyRelease Shift_L"]),
        ({"action": "key", "keys": ["f5"]}, ["KeyPress F5", "KeyRelease F5"]),
    ],
    ids=lambda value: value["action"] if isinstance(value, dict) else "",
)
def test_an_action_reaches_a_window_as_the_events_that_it_names(window, arguments, wanted):
    assert window(arguments) == wanted


def test_a_drag_presses_where_the_pointer_was_and_releases_where_it_goes(window):
    assert window({"action": "mouse_move", **AT}) == []
    events = window({"action": "left_click_drag", **LOW})
    assert events == ["ButtonPress 1 960 270", "ButtonRelease 1 1441 540"]


@pytest.fixture(scope="module")
def window():
    """`window(arguments)` performs an action on a desktop that one window fills, and returns the window's events."""
    with asyncio.Runner() as runner:
        desktop = local(options())()

        async def opened():
            await desktop.boot()
            await desktop.connect()
            await desktop.guest.upload("/tmp/window.py", WINDOW.encode())
            await desktop.guest.launch(["python3", "/tmp/window.py"])
            while "window.py" not in (await desktop.guest.execute(["wmctrl", "-l"])).output:
                await asyncio.sleep(0.2)
            await asyncio.sleep(1)  # the window takes the focus half a second after it is there
            await desktop.guest.screenshot(10)

        async def events(arguments):
            await desktop.guest.execute("true > /tmp/events", shell=True)
            await desktop.guest.perform(read_arguments(arguments))
            await asyncio.sleep(0.5)
            lines = ((await desktop.guest.download("/tmp/events")) or b"").decode().splitlines()
            return [" ".join(line.split()[:2] if "Key" in line else line.split()) for line in lines]

        try:
            runner.run(opened())
            yield lambda arguments: runner.run(events(arguments))
        finally:
            runner.run(desktop.close())

"""Families of tasks for local desktops, made from a seed, with checks and scripted solutions. They need no file.

Training tasks are about files (in a terminal) and texts (in an editor). `eval_out_of_distribution` is about other
programs: a spreadsheet and the desktop's settings.
"""

import random
from collections.abc import Mapping
from typing import Any

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.tasks import INFEASIBLE, Family, Verifier
from rlanything.errors import TaskError

FOLDERS = ("work", "school", "trip", "house", "garden", "music")
NAMES = ("notes", "report", "budget", "letter", "plan", "draft", "invoice", "backup", "todo", "recipe", "essay", "poem")
WORDS = ("milk", "bread", "apples", "coffee", "paper", "candles", "olives", "honey", "stamps", "soap", "rice", "pears")
SETTINGS = (  # (schema, key, value that is not the default, what is asked for)
    ("org.gnome.desktop.interface", "clock-format", "'12h'", "Let the clock show 12 hours."),
    ("org.gnome.desktop.interface", "show-battery-percentage", "true", "Let the battery show its percentage."),
    ("org.gnome.desktop.interface", "text-scaling-factor", "1.25", "Make all text 1.25 times as large."),
    ("org.gnome.desktop.interface", "text-scaling-factor", "1.5", "Make all text 1.5 times as large."),
    ("org.gnome.desktop.peripherals.mouse", "left-handed", "true", "Set the mouse up for the left hand."),
    ("org.gnome.desktop.notifications", "show-banners", "false", "Show no banners for notifications."),
    ("org.gnome.desktop.session", "idle-delay", "uint32 0", "Never blank the screen."),
    ("org.gnome.desktop.session", "idle-delay", "uint32 900", "Blank the screen after 15 minutes."),
)
IN_DISTRIBUTION, OUT_OF_DISTRIBUTION = ("files", "text"), ("cells", "settings")


def generated(split: str, size: int, infeasible: float) -> list[Family]:
    """The families of a split. Raises TaskError if there is no such split."""
    if split not in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        raise TaskError(
            f"split {split}: generated tasks have train, eval_in_distribution and eval_out_of_distribution; "
            "dataset.path names a folder with other tasks"
        )
    kinds = OUT_OF_DISTRIBUTION if split == "eval_out_of_distribution" else IN_DISTRIBUTION
    return [make_family(f"{split}/{i}", kinds[i % len(kinds)], infeasible) for i in range(size)]


def make_family(name: str, kind: str, infeasible: float) -> Family:
    """The family of a name. `infeasible` is the share of families one of whose verifiers cannot be fulfilled."""
    rng = random.Random(f"desktop/{name}")
    config, verifiers, impossible = {"files": _files, "text": _text, "cells": _cells, "settings": _settings}[kind](rng)
    if rng.random() < infeasible:
        verifiers.append(Verifier(instruction=impossible, evaluator={"func": INFEASIBLE}, solution=(_end("failure"),)))
    by_name = {f"verifier{i}": verifier for i, verifier in enumerate(verifiers, 1)}
    return Family(id=name, application=kind, config=tuple(config), verifiers=by_name, current=rng.choice(list(by_name)))


_Made = tuple[list[Mapping[str, Any]], list[Verifier], str]  # set-up, verifiers, what cannot be done


def _files(rng: random.Random) -> _Made:
    folder = f"Documents/{rng.choice(FOLDERS)}"
    *names, new, absent = rng.sample(NAMES, 5)
    config = [_step("write", path=f"~/{folder}/{name}.txt", text=f"{rng.choice(WORDS)}\n") for name in names]
    one, two, three = (f"~/{folder}/{name}.txt" for name in names)
    verifiers = [
        _by_command(
            f"Rename {names[0]}.txt in {folder} to {new}.txt.",
            f"mv {one} ~/{folder}/{new}.txt",
            [{"kind": "exists", "path": one, "not": True}, {"kind": "exists", "path": f"~/{folder}/{new}.txt"}],
        ),
        _by_command(f"Delete {names[1]}.txt in {folder}.", f"rm {two}", [_true(f"test ! -e {two} && test -e {one}")]),
        _by_command(
            f"Copy {names[2]}.txt from {folder} to the desktop.",
            f"cp {three} ~/Desktop/",
            [_true(f"test -e ~/Desktop/{names[2]}.txt && test -e {three}")],
        ),
        _by_command(
            f"Make {names[0]}.txt in {folder} readable and writable by its owner alone.",
            f"chmod 600 {one}",
            [{"kind": "command", "command": f"stat -c %a {one}", "output": "600"}],
        ),
        _by_command(
            f"Move {names[1]}.txt in {folder} into a new folder {new} beside it.",
            f"mkdir ~/{folder}/{new} && mv {two} ~/{folder}/{new}/",
            [_true(f"test -e ~/{folder}/{new}/{names[1]}.txt && test ! -e {two}")],
        ),
    ]
    rename, copy = verifiers[0], verifiers[2]
    both = Verifier(  # a longer way, for the rewriter to ask for
        instruction=f"{rename.instruction[:-1]}, and copy {names[2]}.txt from there to the desktop.",
        evaluator={"checks": [*(rename.checks or ()), *(copy.checks or ())]},
        solution=(rename.solution[0], *copy.solution),
    )
    kept = [*rng.sample(verifiers, rng.randint(2, len(verifiers))), both]
    return [*config, *_terminal()], kept, f"Rename {absent}.txt in {folder} to {new}.txt."


def _true(condition: str) -> Mapping[str, Any]:
    """A check of a shell condition. What holds at the start is no check of its own: the untouched desktop scores 0."""
    return {"kind": "command", "command": f"{condition} && echo yes", "output": "yes"}


def _text(rng: random.Random) -> _Made:
    path, (first, second, more, other) = f"~/Documents/{rng.choice(NAMES)}.txt", rng.sample(WORDS, 4)
    title = path.rpartition("/")[2]
    save = (Action(kind="key", keys=("ctrl", "s")), _end("success"))
    start, end = Action(kind="key", keys=("ctrl", "a")), Action(kind="key", keys=("ctrl", "end"))
    wanted = [
        (f"Replace everything in {title} by the word {other}, and save it.", other, (start, _type(other))),
        (
            f"Add the line {more} at the end of {title}, and save it.",
            f"{first}\n{second}\n{more}",
            (end, _type(f"\n{more}")),
        ),
        (
            f"Put {more} and {other} at the end of {title}, each on a line of its own, and save it.",
            f"{first}\n{second}\n{more}\n{other}",
            (end, _type(f"\n{more}"), _type(f"\n{other}")),
        ),
    ]
    verifiers = [
        Verifier(
            instruction=words,
            evaluator={"checks": [{"kind": "file_text", "path": path, "text": text}]},
            solution=(*way, *save),
        )
        for words, text, way in wanted
    ]
    config = [
        _step("write", path=path, text=f"{first}\n{second}"),
        _step("execute", command=f"mousepad {path} > /dev/null 2>&1 &", shell=True),
        _step("wait_window", title=title),
    ]
    return config, verifiers, f"Delete the line {more} in {title}, and save it."


def _cells(rng: random.Random) -> _Made:
    name, numbers = rng.choice(NAMES), [rng.randint(1, 99) for _ in range(rng.randint(2, 4))]
    path, row, value = f"~/Documents/{name}.xlsx", len(numbers) + 1, rng.randint(100, 999)
    keep = (Action(kind="key", keys=("ctrl", "s")), _end("success"))
    home, down = Action(kind="key", keys=("ctrl", "home")), Action(kind="key", keys=("down",))
    below = (home, *(down for _ in numbers))
    wanted: list[tuple[str, str, float, tuple[Action, ...]]] = [
        (f"Write {value} into the cell A{row} and save the workbook.", f"A{row}", value, (*below, _type(f"{value}\n"))),
        (
            f"Put the sum of the numbers of column A into the cell A{row} and save the workbook.",
            f"A{row}",
            sum(numbers),
            (*below, _type(f"=SUM(A1:A{row - 1})\n")),
        ),
        (f"Change the cell A1 to {value} and save the workbook.", "A1", value, (home, _type(f"{value}\n"))),
    ]
    verifiers = [
        Verifier(
            instruction=words,
            evaluator={"checks": [{"kind": "cell", "path": path, "cell": cell, "value": number}]},
            solution=(*way, *keep),
        )
        for words, cell, number, way in wanted
    ]
    config = [
        _step("write", path=path, rows=[[number] for number in numbers]),
        _step("execute", command=f"localc --norestore {path} > /dev/null 2>&1 &", shell=True),
        _step("wait_window", title=f"{name}.xlsx"),
    ]
    return config, verifiers, f"Delete the picture of a cat on the second sheet of {name}.xlsx."


def _settings(rng: random.Random) -> _Made:
    verifiers = []
    for schema, key, value, words in rng.sample(SETTINGS, 3):
        check = {"kind": "command", "command": ["gsettings", "get", schema, key], "output": value}
        verifiers.append(_by_command(words, f'gsettings set {schema} {key} "{value}"', [check]))
    return _terminal(), verifiers, "Switch Bluetooth on."


def _by_command(words: str, command: str, checks: list[Mapping[str, Any]]) -> Verifier:
    return Verifier(instruction=words, evaluator={"checks": checks}, solution=(_type(f"{command}\n"), _end("success")))


def _terminal() -> list[Mapping[str, Any]]:
    return [
        _step("launch", command=["gnome-terminal", "--maximize", "--zoom=1.5"]),
        _step("wait_window", title="Terminal"),
    ]


def _step(kind: str, **parameters: Any) -> Mapping[str, Any]:
    return {"type": kind, "parameters": parameters}


def _type(text: str) -> Action:
    return Action(kind="type", text=text)


def _end(status: str) -> Action:
    return Action(kind="terminate", status=status)

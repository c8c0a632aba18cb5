"""The scripted solution: the next action on a shortest way to a task's goals.

It knows the whole state of the desktop. Only for what cannot be done it looks at the screen first. It is the reference
policy, the source of demonstrations, and the measure of progress: an action that shortens the rest of the way is
progress.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlanything.domains.osworld.actions import LAST, Action
from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.desk import HEIGHT, PAGE, WIDTH, Desk, Kind, Widget
from rlanything.domains.osworld.canvas.goals import Goal
from rlanything.domains.osworld.canvas.layout import NOTCH, on_top, slider_start
from rlanything.domains.osworld.canvas.words import CANCEL, CLOSE, NEW_NAME, OK, TRASH

GRID = 40  # coordinates of solutions are multiples of it, so that a tiny model needs few numbers
LONGEST = 30  # steps after which a way counts as none
PROGRAM = {"set": "Settings", "delete": "Files", "rename": "Files", "open": "Files", "form": "Form", "drag": None}


@dataclass(frozen=True)
class Move:
    """An action with the line that says what it is for."""

    line: str
    action: Action


IMPOSSIBLE = Move("impossible", Action(kind="terminate", status="failure"))
DONE = Move("done", Action(kind="terminate", status="success"))
WAIT = Move("wait", Action(kind="wait", time=1.0))


def solve(goals: Sequence[Goal], feasible: bool, desk: Desk) -> Move:
    """The next move. If the goals are not `feasible`, the way ends once the screen has shown that."""
    if desk.busy:
        return WAIT
    shown = {widget.name: widget for widget in on_top(desk)}
    if desk.dialog and desk.dialog.kind == "notice":
        return click(shown[OK])
    goal = next((g for g in goals if not feasible or not g.holds(desk)), None)
    if goal is None:
        return DONE
    answers_it = desk.dialog and desk.dialog.kind == goal.kind and desk.selected == goal.name
    if desk.dialog and not answers_it:
        return click(shown[CANCEL])
    if desk.menu and not (goal.kind == "set" and goal.name == desk.menu):
        return Move("press esc", Action(kind="key", keys=("escape",)))
    program = PROGRAM.get(goal.kind, goal.name)
    if desk.program != program:
        if desk.program is not None:
            return click(shown[CLOSE])
        return _open(shown[program]) if program in shown else IMPOSSIBLE
    return _SOLVED.get(goal.kind, lambda *_: IMPOSSIBLE)(goal, desk, shown)


def distance(goals: Sequence[Goal], feasible: bool, desk: Desk) -> int:
    """Moves until the solution ends the episode, that one included; LONGEST if it finds no end."""
    desk = desk.clone()
    for step in range(1, LONGEST):
        move = solve(goals, feasible, desk)
        if move.action.kind == "terminate":
            return LONGEST if move == IMPOSSIBLE and feasible else step  # the agent has spoiled the task
        perform(desk, move.action)
    return LONGEST


def click(widget: Widget, x: int | None = None) -> Move:
    """A click on a widget, or on a pixel column of it."""
    return Move(f"click {widget.name}", Action(kind="left_click", coordinate=at(widget, x)))


def at(widget: Widget, x: int | None = None) -> tuple[int, int]:
    """The coordinate of a widget's centre on the grid."""
    return _on_grid(widget.x if x is None else x, WIDTH), _on_grid(widget.y, HEIGHT)


def _on_grid(pixel: int, size: int) -> int:
    return min(LAST // GRID * GRID, max(0, round(pixel * (LAST + 1) / size / GRID) * GRID))


def _open(widget: Widget) -> Move:
    return Move(f"open {widget.name}", Action(kind="double_click", coordinate=at(widget)))


def _type(text: str) -> Move:
    return Move(f"type {text}", Action(kind="type", text=text))


def _set(goal: Goal, desk: Desk, shown: dict[str, Widget]) -> Move:
    name, value = goal.name, goal.value
    if desk.menu:
        return click(shown[str(value)])
    if desk.tab != words.TAB_OF[name]:
        return click(shown[words.TAB_OF[name]])
    if name not in desk.tabs[desk.tab]:
        return IMPOSSIBLE
    if name in words.SLIDERS:
        return click(shown[name], slider_start(shown[name]) + NOTCH * int(value))
    if name in words.SPINNERS:
        return click(shown[f"{name} {'+' if int(value) > desk.number[name] else '-'}"])
    return click(shown[str(value) if name == words.THEME else name])


def _file(goal: Goal, desk: Desk, shown: dict[str, Widget]) -> Move:
    if desk.dialog:
        if goal.kind == "rename" and desk.dialog.text != goal.value:
            ready = desk.dialog.focused and (desk.dialog.replaces or not desk.dialog.text)
            return _type(str(goal.value)) if ready else click(shown[NEW_NAME])
        return click(shown[OK])
    if goal.name not in shown:
        if goal.name not in desk.files and (len(desk.files) <= PAGE or desk.seen == {0, 1}):
            return IMPOSSIBLE
        up = desk.page > 0
        return Move(f"scroll {'up' if up else 'down'}", Action(kind="scroll", pixels=5 if up else -5))
    if goal.kind == "open":
        return _open(shown[goal.name])
    return click(shown[goal.name] if desk.selected != goal.name else shown[goal.kind.capitalize()])


def _form(goal: Goal, desk: Desk, shown: dict[str, Widget]) -> Move:
    for field, text in goal.entries:
        if field not in shown:
            return IMPOSSIBLE
        if desk.typed[field] != text:
            ready = desk.focus == field and (desk.replaces or not desk.typed[field])
            return _type(text) if ready else click(shown[field])
    return click(shown[OK])


def _drag(goal: Goal, desk: Desk, shown: dict[str, Widget]) -> Move:
    if goal.name not in shown or shown[goal.name].kind is not Kind.DOCUMENT:
        return IMPOSSIBLE
    if desk.held != goal.name:
        return Move(f"point at {goal.name}", Action(kind="mouse_move", coordinate=at(shown[goal.name])))
    return Move(f"drag to {TRASH}", Action(kind="left_click_drag", coordinate=at(shown[TRASH])))


_SOLVED: dict[str, Callable[[Goal, Desk, dict[str, Widget]], Move]] = {
    "set": _set, "delete": _file, "rename": _file, "open": _file, "form": _form, "drag": _drag,
}  # fmt: skip

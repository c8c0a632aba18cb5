"""Tasks on drawn desktops: families of goals on one desktop, from a seed alone.

A family is one desktop with several sets of goals, from one goal near by to several in different programs, each with
a verifier of its own (`Goal.holds`). A task is one of them. The rewriter chooses another, so the family is what a task
can become harder or easier within.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.desk import Desk, Dialog
from rlanything.domains.osworld.canvas.goals import Goal, value_of
from rlanything.domains.osworld.canvas.solver import distance

KINDS = ("switch", "slider", "spinner", "radio", "list", "delete", "rename", "open", "form", "drag", "start")
WITHOUT_HELD_OUT = ("radio", "list", "start")  # kinds none of whose words are held out
NUM_SINGLE = 3  # goals of a family that stand alone


@dataclass(frozen=True)
class Level:
    """The shares and sizes that make desktops of a level easy or hard."""

    near: float
    """Share of desktops whose right program is open at the start."""
    notice: float
    """Share with a notice that must be answered first."""
    busy: float
    """Share that is still loading."""
    icons: tuple[int, int]
    """Least and most programs, decorations and documents."""
    files: tuple[int, int]
    """Least and most files."""
    jitter: int = 3
    """Shift of what is on the screen [pixels]."""


LEVELS = {
    "easy": Level(near=0.85, notice=0.0, busy=0.0, icons=(5, 7), files=(3, 3)),
    "middle": Level(near=0.5, notice=0.05, busy=0.05, icons=(5, 8), files=(3, 6)),
    "hard": Level(near=0.1, notice=0.15, busy=0.1, icons=(6, 8), files=(4, 6)),
}


@dataclass(frozen=True)
class Verifier:
    """A set of goals of a family."""

    goals: tuple[Goal, ...]
    feasible: bool = True

    def solved(self, desk: Desk, said: str | None) -> bool:
        """True if an episode that ends here, with what the agent `said` of the task, solves it."""
        if said == "failure" or not self.feasible:
            return said == "failure" and not self.feasible
        return all(goal.holds(desk) for goal in self.goals)


@dataclass(frozen=True)
class Family:
    """A desktop at its start, and what can be asked for on it, the shortest way first."""

    desk: Desk
    verifiers: tuple[Verifier, ...]


def make_family(seed: str, level: str, infeasible: float, unseen: bool = False) -> Family:
    """The family of a seed. `infeasible` is the share of families in which one verifier cannot be fulfilled.

    `unseen` families ask for words of HELD_OUT, if the kind of goal has any, on desktops that look as no other family's
    do (`Desk`). The others never ask for them.
    """
    tried = (_made(random.Random(f"{level}/{seed}/{i}"), LEVELS[level], infeasible, unseen) for i in count())
    return next(family for family in tried if family)


def _made(rng: random.Random, level: Level, infeasible: float, unseen: bool) -> Family | None:
    icons, files = rng.randint(*level.icons), rng.randint(*level.files)
    desk = Desk(rng, jitter=level.jitter, num_icon=icons, num_file=files, unseen=unseen)
    found = [(kind, goal) for kind in rng.sample(KINDS, len(KINDS)) if (goal := random_goal(rng, desk, kind))]
    allowed = WITHOUT_HELD_OUT if unseen else ()
    singles = [g for kind, g in found if kind in allowed or bool(g.asks_for & words.HELD_OUT) is unseen][:NUM_SINGLE]
    if len(singles) < 2:
        return None
    if rng.random() < level.near:
        _start_near(rng, desk, singles[0])
    if rng.random() < level.notice:
        desk.dialog = Dialog(kind="notice")
    elif rng.random() < level.busy:
        desk.busy = 1
    asked = [(goal,) for goal in singles] + [_together(singles[:n]) for n in range(2, len(singles) + 1)]
    verifiers = [Verifier(goals) for goals in asked if goals and not any(goal.holds(desk) for goal in goals)]
    if rng.random() < infeasible and (goal := _impossible(rng, desk, unseen)):
        verifiers.append(Verifier((goal,), feasible=False))
    ways = {verifier: distance(verifier.goals, verifier.feasible, desk) for verifier in verifiers}
    kept = [v for v in verifiers if ways[v] > 1 or not v.feasible]  # 1: it holds already
    return Family(desk, tuple(sorted(kept, key=ways.__getitem__))) if len(kept) > 1 else None


def random_goal(rng: random.Random, desk: Desk, kind: str) -> Goal | None:
    """A goal of one of KINDS that does not hold yet, or None if the desktop has none."""
    match kind:
        case "switch" | "slider" | "spinner" | "radio" | "list":
            return _setting(rng, desk, kind)
        case "delete" | "open":
            return Goal(kind, rng.choice(desk.files))
        case "rename":
            return Goal(kind, rng.choice(desk.files), rng.choice([f for f in words.FILES if f not in desk.files]))
        case "form":
            fields = rng.sample(desk.fields, rng.choice([1, 1, 2]))
            return Goal(kind, entries=tuple((field, _entry(rng, field)) for field in fields))
        case "drag":
            return Goal(kind, rng.choice(desk.documents)) if desk.documents else None
    return Goal(kind, rng.choice(words.PROGRAMS)) if desk.program is None else None


def _setting(rng: random.Random, desk: Desk, kind: str) -> Goal | None:
    of_kind = {
        "switch": (*words.SWITCHES, *words.CHECKS), "slider": words.SLIDERS, "spinner": words.SPINNERS,
        "radio": (words.THEME,), "list": (words.SIZE,),
    }[kind]  # fmt: skip
    controls = [name for tab in desk.tabs.values() for name in tab if name in of_kind]
    if not controls:
        return None
    name = rng.choice(controls)
    now = value_of(desk, name)
    if kind == "switch":
        return Goal("set", name, not now)
    if kind in ("radio", "list"):
        return Goal("set", name, rng.choice([choice for choice in words.CHOICES[name] if choice != now]))
    reach = 2 if kind == "spinner" else words.TOP
    return Goal("set", name, rng.choice([n for n in range(words.TOP + 1) if n != now and abs(n - int(now)) <= reach]))


def _entry(rng: random.Random, field: str) -> str:
    return str(rng.randint(1000, 9999)) if field in words.NUMBERED else rng.choice(words.TYPED)


def _impossible(rng: random.Random, desk: Desk, unseen: bool) -> Goal | None:
    """A goal about a control, a file or a field that this desktop does not have, or None if no word is left for one."""

    def missing(known: Sequence[str], there: Sequence[str]) -> list[str]:
        return [name for name in known if name not in there and (name in words.HELD_OUT) is unseen]

    goals = [Goal("set", name, True) for name in missing(words.TABS["Network"], desk.tabs["Network"])]
    goals += [Goal("delete", name) for name in missing(words.FILES, [*desk.files, *desk.documents])]
    typed = [word for word in words.TYPED if (word in words.HELD_OUT) is unseen]
    goals += [Goal("form", entries=((name, rng.choice(typed)),)) for name in missing(words.FIELDS, desk.fields)]
    by_kind = [[goal for goal in goals if goal.kind == kind] for kind in ("set", "delete", "form")]
    left = [found for found in by_kind if found]
    return rng.choice(rng.choice(left)) if left else None


def _together(goals: Sequence[Goal]) -> tuple[Goal, ...]:
    """Goals as one task, or none if they get in each other's way. What concerns the last screen comes last."""
    ordered = sorted(goals, key=lambda goal: goal.kind in ("open", "start"))
    named = [name for goal in goals for name in (goal.asks_for or {""})]
    last = sum(goal.kind in ("open", "start") for goal in goals)
    return () if last > 1 or len(set(named)) < len(named) else tuple(ordered)


def _start_near(rng: random.Random, desk: Desk, goal: Goal) -> None:
    """Open the program that the goal is about, and mostly the right page of it."""
    if goal.kind == "set":
        desk.program = "Settings"
        if rng.random() < 0.8:
            desk.tab = words.TAB_OF[goal.name]
    elif goal.kind in ("delete", "rename", "open"):
        desk.program, desk.seen = "Files", frozenset({0})
    elif goal.kind == "form":
        desk.program = "Form"

"""Goals of tasks on a drawn desktop: each can be said in words, and tells whether a state fulfils it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.desk import Desk

Value = str | int | bool


@dataclass(frozen=True)
class Goal:
    """One thing to bring about.

    `kind` is set (a control), delete, rename, open (a file), form, drag (a document to the Trash) or start (a program);
    `name` is of the control, file, document or program, and empty for a form.
    """

    kind: str
    name: str = ""
    value: Value = ""
    """The value that a control is to have, or the new name of a file."""
    entries: tuple[tuple[str, str], ...] = ()
    """(field, text) pairs of a form."""

    def say(self) -> str:
        """The goal as an instruction."""
        match self.kind:
            case "set" if self.name in (*words.SWITCHES, *words.CHECKS):
                return f"turn {'on' if self.value else 'off'} {self.name}"
            case "set":
                return f"set {self.name} to {self.value}"
            case "rename":
                return f"rename {self.name} to {self.value}"
            case "drag":
                return f"move {self.name} to {words.TRASH}"
            case "form":
                return f"enter {' and '.join(f'{text} as {field}' for field, text in self.entries)} and press OK"
        return f"{self.kind} {self.name}"

    def holds(self, desk: Desk) -> bool:
        """True if the desktop is as the goal asks."""
        match self.kind:
            case "set":
                return value_of(desk, self.name) == self.value and desk.menu != self.name
            case "delete":
                return self.name in desk.deleted
            case "rename":
                return desk.renamed.get(str(self.value)) == self.name
            case "open":
                opened = desk.opened or ""
                return desk.program == "Viewer" and desk.renamed.get(opened, opened) == self.name
            case "form":
                return desk.sent is not None and all(desk.sent.get(field) == text for field, text in self.entries)
            case "drag":
                return self.name in desk.trash
        return desk.program == self.name and desk.dialog is None

    @property
    def asks_for(self) -> set[str]:
        """The words that it names."""
        named = {self.name, *(word for entry in self.entries for word in entry)}
        return (named | ({self.value} if isinstance(self.value, str) else set())) - {""}


def value_of(desk: Desk, control: str) -> Value:
    """The value that a control has now."""
    for values in (desk.switched, desk.number, desk.choice):
        if control in values:
            value: Value = values[control]
            return value
    raise KeyError(control)


def instruction(goals: Sequence[Goal]) -> str:
    """All goals in one sentence."""
    return " and ".join(goal.say() for goal in goals)

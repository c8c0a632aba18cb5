"""What the terminal shows of a run: a bar for each phase and a line of figures for each step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from rlanything.processes.guard import exit_unread
from rlanything.processes.interrupts import raise_missed_interrupt

FILE_WIDTH = 120  # columns of a table that goes to a file or pipe


class Bar:
    """One phase's bar."""

    def __init__(self, display: RichProgress, id: TaskID) -> None:
        self.display, self.id = display, id

    def advance(self, n: int = 1) -> None:
        """Count n more units as done."""
        self.display.advance(self.id, n)

    def note(self, text: str) -> None:
        """Show a text beside the bar."""
        self.display.update(self.id, note=text)


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        exit_unread()


class Progress:
    """Bars and lines on the terminal, or the lines alone if there is no terminal.

    One display holds the bars of all phases under way, because phases nest (a measurement within a warm start).
    `seconds` collects the time of every phase since `start_step`.
    """

    def __init__(self) -> None:
        self.console = _Terminal(highlight=False)
        if not self.console.is_terminal:
            self.console.width = FILE_WIDTH
        self.display = RichProgress(
            TextColumn("{task.description:<24}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
            refresh_per_second=4,
            disable=not self.console.is_terminal,
        )
        self.start_step("")

    def start_step(self, name: str) -> None:
        """Put `name` before the labels of the bars, and forget the times of the last step."""
        self.name, self.started = name, time.perf_counter()
        self.seconds: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since `start_step`. Phases that overlap add up to more."""
        return time.perf_counter() - self.started

    @contextmanager
    def phase(self, label: str, total: int | None = None) -> Iterator[Bar]:
        """Show a bar while the phase runs, and keep its time. Raises KeyboardInterrupt if a library swallowed one."""
        raise_missed_interrupt()
        started = time.perf_counter()
        if not self.display.tasks:
            self.display.start()
        bar = Bar(self.display, self.display.add_task(f"{self.name} {label}".strip(), total=total, note=""))
        try:
            yield bar
        finally:
            self.display.remove_task(bar.id)
            if not self.display.tasks:
                self.display.stop()
            self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - started

    def line(self, text: str) -> None:
        """Print one line above the bars, as it is."""
        self.console.print(text, soft_wrap=True, markup=False)

    def table(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        """Print a table."""
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        for i, name in enumerate(header):
            table.add_column(name, justify="left" if i == 0 else "right", no_wrap=i == 0)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

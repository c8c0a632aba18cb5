"""What a person sees while a run goes on: a bar per phase, a line of figures a step, nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Table


class Bar:
    """One phase's bar."""

    def __init__(self, display: RichProgress, label: str, total: int | None) -> None:
        self.display = display
        self.id = display.add_task(label, total=total, note="")

    def advance(self, n: int = 1) -> None:
        """n more units are done."""
        self.display.advance(self.id, n)

    def note(self, text: str) -> None:
        """Say what the phase is at."""
        self.display.update(self.id, note=text)


class Progress:
    """Bars and lines on the terminal; where there is no terminal, the lines alone.

    `seconds` collects the time of every phase since `start_step`.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.seconds: dict[str, float] = {}

    def start_step(self) -> None:
        """Forget the times of the last step."""
        self.seconds = {}

    @contextmanager
    def phase(self, label: str, total: int | None = None) -> Iterator[Bar]:
        """Show a bar while the phase runs, and keep its time."""
        started = time.perf_counter()
        columns = (
            TextColumn("{task.description:<18}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        quiet = not self.console.is_terminal
        with RichProgress(
            *columns, console=self.console, transient=True, refresh_per_second=4, disable=quiet
        ) as display:
            yield Bar(display, label, total)
        self.seconds[label] = self.seconds.get(label, 0.0) + time.perf_counter() - started

    def line(self, text: str) -> None:
        """Print one line above the bars."""
        self.console.print(text, soft_wrap=True)

    def table(self, title: str, header: list[str], rows: list[list[str]]) -> None:
        """Print a table."""
        table = Table(title=title, title_justify="left")
        for i, name in enumerate(header):
            table.add_column(name, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

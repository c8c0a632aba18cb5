"""A code interpreter whose state lasts as long as an episode, on a sandbox whose programs share nothing.

A session is the list of its cells. A call runs a fresh, isolated program: the earlier cells again, unheard, then the
new one. The sandbox seeds `random` and hashes, and the notebook numpy's global generator, so the replay gives the same
state; only what asks the clock or the system for randomness differs. Nothing lives between calls: a thousand episodes
hold no process, a retry and a resumed run need nothing, and no state leaks from one episode to another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlanything.domains.base import SandboxFailure
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning import notebook
from rlanything.sandbox.protocol import Verdict

NOTEBOOK = Path(notebook.__file__).read_text(encoding="utf-8")
NOTHING = "(no output: print what you want to see)"
STOPPED = {
    Verdict.TIME_LIMIT: "the cell took too long and was stopped",
    Verdict.MEMORY_LIMIT: "the cell took too much memory and was stopped",
    Verdict.OUTPUT_LIMIT: "the cell wrote too much and was stopped",
    Verdict.RUNTIME_ERROR: "the cell ended the interpreter",
    Verdict.OK: "the cell ended the interpreter",
}


@dataclass(frozen=True, kw_only=True)
class CallLimits:
    """Limits of a session."""

    call_s: float
    """Processor time of a new cell [s]; the cells before it have what they took, and as much again."""
    session_s: float
    """Processor time of all programs of a session [s]. One that waits is charged the time that it was let wait."""
    max_chars: int
    """Longest output that is shown, its middle left out."""


@dataclass(kw_only=True)
class Interpreter:
    """The session of one episode."""

    programs: Programs
    limits: CallLimits
    cells: list[str] = field(default_factory=list)
    """The cells whose effects the next one sees."""
    replay_s: float = 0.0
    """What running these cells was charged last [s]."""
    spent_s: float = 0.0
    """What all programs so far were charged [s]."""

    async def call(self, code: str) -> tuple[str, str]:
        """Run a cell. Returns what it wrote, and how it ended: "ok", "exception", "ended" (it ended the interpreter),
        or the name of a limit's verdict.

        A cell that was stopped leaves nothing behind, and the output says so. Raises SandboxFailure.
        """
        left_s = self.limits.session_s - self.spent_s
        if left_s <= 0:
            return f"(the session's {self.limits.session_s:g} s are spent; no cell runs any more)", "session_limit"
        time_s = min(self.limits.call_s + 2 * self.replay_s, left_s)
        result = await self.programs.run(program([*self.cells, code]), "", time_s)
        # A cell that sleeps holds a runner as one that computes does, and is run again as slowly.
        charged_s = max(result.seconds, self.programs.waited_as(result.wall_s))
        self.spent_s += charged_s
        if result.verdict is Verdict.SANDBOX_ERROR:
            raise SandboxFailure(result.error)
        text = result.output.decode("utf-8", "backslashreplace").strip()
        ended = result.verdict is Verdict.RUNTIME_ERROR and result.exit_code in (notebook.DONE, notebook.RAISED)
        if ended:
            self.cells.append(code)
            self.replay_s = charged_s
            how = "ok" if result.exit_code == notebook.DONE else "exception"
        else:
            how = "ended" if result.verdict in (Verdict.OK, Verdict.RUNTIME_ERROR) else str(result.verdict)
            text = f"{text}\n({STOPPED[result.verdict]}; its effects are lost)".strip()
        return clip(text or NOTHING, self.limits.max_chars), how


def program(cells: Sequence[str]) -> str:
    """The program that runs the cells, of which the last is heard."""
    return f"{NOTEBOOK}\nrun_cells({list(cells)!r})\n"


def clip(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer than `most` characters, in as many, with a note between."""
    if len(text) <= most:
        return text
    kept = max(0, most - len(_left_out(len(text))))
    head, tail = text[: kept // 2], text[len(text) - (kept - kept // 2) :]
    return f"{head}{_left_out(len(text) - kept)}{tail}"[:most]


def _left_out(num: int) -> str:
    return f"\n({num} characters left out)\n"

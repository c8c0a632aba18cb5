"""Tries programs on tests: the sandbox executes each pair once, and the output is compared here, outside of it."""

from __future__ import annotations

import asyncio
import math
from functools import partial

from rlanything.config.schema import SandboxConfig
from rlanything.domains.coding.problems import Check
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Limits, Verdict

MAX_SHOWN = 300  # characters of an input or output that an observation shows
MAX_REMEMBERED = 20_000  # verdicts that are remembered: those of one step of the loop, with some to spare

Trial = tuple[str, Check, float]
"""A program, a test, and the limit of processor time [s]."""


class Trials:
    """Shares one execution among all who try the same program on the same test.

    A policy that is sure of a problem writes the same program many times.
    """

    def __init__(self, config: SandboxConfig, float_tolerance: float) -> None:
        self.config, self.float_tolerance = config, float_tolerance
        self._sandbox: Sandbox | None = None
        self._verdicts: dict[Trial, asyncio.Future[tuple[Verdict, str]]] = {}

    def start(self) -> Sandbox:
        """Return the sandbox, started if need be. Raises SandboxUnavailable, which ends the run: no retry helps."""
        if self._sandbox is None:
            self._sandbox = Sandbox(self.config.num_runner, self.config.allow_unisolated)
        return self._sandbox

    async def verdict(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        """Try a program on a test, within `time_s` of processor time [s].

        Returns the verdict and the end of the output, or of standard error if the program failed.
        """
        trial = (program, test, float(time_s))
        if trial not in self._verdicts:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.pop(next(iter(self._verdicts)))
            self._verdicts[trial] = asyncio.ensure_future(self._execute(*trial))
            self._verdicts[trial].add_done_callback(partial(self._forget_failure, trial))
        # A caller that is cancelled must not cancel the execution, which others may share.
        return await asyncio.shield(self._verdicts[trial])

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _forget_failure(self, trial: Trial, done: asyncio.Future[tuple[Verdict, str]]) -> None:
        """Forget an execution that the sandbox failed at, so that a retry executes it again."""
        if done.cancelled() or done.exception() or done.result()[0] is Verdict.SANDBOX_ERROR:
            self._verdicts.pop(trial, None)

    async def _execute(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        limits = Limits(
            time_s=time_s,
            wall_s=time_s * self.config.wall_factor + 1,
            memory_mb=self.config.memory_mb,
            output_mb=self.config.output_mb,
            num_thread=self.config.num_thread,
        )
        source, stdin = (text.encode("utf-8", "surrogatepass") for text in (program, test.input))
        result = await self.start().run(source, stdin, limits)
        if result.verdict is not Verdict.OK:
            return result.verdict, clip(result.error, end=True)
        output = result.output.decode("utf-8", "replace")
        right = same_output(test.output, output, self.float_tolerance)
        return Verdict.OK if right else Verdict.WRONG_ANSWER, clip(output, end=True)


def same_output(expected: str, found: str, tolerance: float) -> bool:
    """Compare a program's output with the expected one, token by token, whatever white space separates them.

    An expected token with a decimal point or an exponent may differ by `tolerance`, absolute or relative, whichever is
    larger; all others must be equal.
    """
    expected_tokens, found_tokens = expected.split(), found.split()
    return len(expected_tokens) == len(found_tokens) and all(
        a == b or _is_close(a, b, tolerance) for a, b in zip(expected_tokens, found_tokens, strict=True)
    )


def _is_close(expected: str, found: str, tolerance: float) -> bool:
    if "." not in expected and "e" not in expected.lower():
        return False
    try:
        a, b = float(expected), float(found)
    except ValueError:
        return False
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def clip(text: str, end: bool = False) -> str:
    """Shorten a text to its first MAX_SHOWN characters, or with `end` to its last."""
    text = text.strip()
    if len(text) <= MAX_SHOWN:
        return text
    return "…" + text[-MAX_SHOWN:] if end else text[:MAX_SHOWN] + "…"

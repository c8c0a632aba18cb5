"""Tries programs on tests: the sandbox executes each pair once, and the output is compared here, outside of it."""

from __future__ import annotations

import asyncio
from functools import partial

from rlanything.config.schema import SandboxConfig
from rlanything.domains.coding.compare import same_output
from rlanything.domains.coding.problems import Check
from rlanything.errors import TaskError
from rlanything.sandbox.pool import Sandbox, SandboxUnavailable
from rlanything.sandbox.protocol import Limits, Verdict

MAX_SHOWN = 300  # characters of an input or output that an observation shows
MAX_REMEMBERED = 20_000  # verdicts that are remembered: those of one step of the loop, with some to spare


class Trials:
    """Shares one execution among all who try the same program on the same test.

    A policy that is sure of a problem writes the same program many times. `close` ends the sandbox.
    """

    def __init__(self, config: SandboxConfig, float_tolerance: float) -> None:
        self.config, self.float_tolerance = config, float_tolerance
        self._sandbox: Sandbox | None = None
        self._verdicts: dict[tuple[str, Check, float], asyncio.Future[tuple[Verdict, str]]] = {}

    def start(self) -> Sandbox:
        """Start the sandbox if it does not run yet, and return it.

        Raises TaskError if this machine cannot isolate programs. That error ends the run: no retry helps.
        """
        if self._sandbox is None:
            try:
                self._sandbox = Sandbox(self.config.num_runner, self.config.allow_unisolated)
            except SandboxUnavailable as error:
                raise TaskError(str(error)) from error
        return self._sandbox

    async def verdict(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        """Try a program on a test, within `time_s` of processor time [s].

        Returns the verdict and the end of the output, or of standard error if the program failed.
        """
        key = (program, test, float(time_s))
        if key not in self._verdicts:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.pop(next(iter(self._verdicts)))
            self._verdicts[key] = asyncio.ensure_future(self._execute(*key))
            self._verdicts[key].add_done_callback(partial(self._forget_failure, key))
        # A caller that is cancelled must not cancel the execution, which others may share.
        return await asyncio.shield(self._verdicts[key])

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _forget_failure(self, key: tuple[str, Check, float], done: asyncio.Future[tuple[Verdict, str]]) -> None:
        """Forget an execution that the sandbox failed at, so that a retry executes it again."""
        if done.cancelled() or done.exception() or done.result()[0] is Verdict.SANDBOX_ERROR:
            self._verdicts.pop(key, None)

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


def clip(text: str, end: bool = False) -> str:
    """Shorten a text to its first MAX_SHOWN characters, or with `end` to its last."""
    text = text.strip()
    if len(text) <= MAX_SHOWN:
        return text
    return "…" + text[-MAX_SHOWN:] if end else text[:MAX_SHOWN] + "…"

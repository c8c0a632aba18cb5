"""Programs on tests: executed in the sandbox, each once, and what they wrote compared."""

from __future__ import annotations

import asyncio
from functools import partial

from rlanything.config.schema import SandboxConfig
from rlanything.domains.coding.compare import same_output
from rlanything.domains.coding.problems import Check
from rlanything.errors import TaskError
from rlanything.sandbox.pool import Sandbox, SandboxUnavailable
from rlanything.sandbox.protocol import Limits, Verdict

MAX_SHOWN = 300  # characters of an input or output in what the environment answers
MAX_TRIED = 20_000  # programs on tests whose verdicts are remembered: what a step of the loop tries, and some more


class Trials:
    """Who tries the same program on the same test shares one execution: a policy that is sure of a problem writes one
    program many times. `close` ends the sandbox."""

    def __init__(self, config: SandboxConfig, float_tolerance: float) -> None:
        self.config, self.float_tolerance = config, float_tolerance
        self._sandbox: Sandbox | None = None
        self._tried: dict[tuple[str, Check, float], asyncio.Future[tuple[Verdict, str]]] = {}

    def start(self) -> Sandbox:
        """The sandbox, which otherwise starts with the first program. Raises TaskError where it cannot: no retry mends
        that."""
        if self._sandbox is None:
            try:
                self._sandbox = Sandbox(self.config.num_runner, self.config.allow_unisolated)
            except SandboxUnavailable as error:
                raise TaskError(str(error)) from error
        return self._sandbox

    async def verdict(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        """The verdict of a program on a test, and the end of what it wrote (to standard error where it broke)."""
        key = (program, test, float(time_s))
        if key not in self._tried:
            if len(self._tried) >= MAX_TRIED:
                self._tried.pop(next(iter(self._tried)))
            self._tried[key] = asyncio.ensure_future(self._execute(*key))
            self._tried[key].add_done_callback(partial(self._forget_broken, key))
        return await asyncio.shield(self._tried[key])

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

    def _forget_broken(self, key: tuple[str, Check, float], done: asyncio.Future[tuple[Verdict, str]]) -> None:
        """Who gives up waiting leaves the execution to those who try again; one that broke is done anew."""
        if done.cancelled() or done.exception() or done.result()[0] is Verdict.SANDBOX_ERROR:
            self._tried.pop(key, None)

    async def _execute(self, program: str, test: Check, time_s: float) -> tuple[Verdict, str]:
        config = self.config
        wall_s = time_s * config.wall_factor + 1
        limits = Limits(time_s, wall_s, config.memory_mb, config.output_mb, config.num_thread)
        source = program.encode("utf-8", "surrogatepass")
        result = await self.start().run(source, test.input.encode("utf-8", "surrogatepass"), limits)
        if result.verdict is not Verdict.OK:
            return result.verdict, clip(result.error, end=True)
        output = result.output.decode("utf-8", "replace")
        right = same_output(test.output, output, self.float_tolerance)
        return Verdict.OK if right else Verdict.WRONG_ANSWER, clip(output, end=True)


def clip(text: str, end: bool = False) -> str:
    """The beginning of a text, or its end, for whoever reads what the environment answers."""
    text = text.strip()
    if len(text) <= MAX_SHOWN:
        return text
    return "…" + text[-MAX_SHOWN:] if end else text[:MAX_SHOWN] + "…"

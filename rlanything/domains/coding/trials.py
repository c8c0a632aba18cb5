"""Tries programs on tests: the sandbox executes each pair once, and the output is compared here, outside of it."""

import asyncio
import logging
import re
from functools import partial

from rlanything.domains.coding import drivers
from rlanything.domains.coding.compare import same_output, same_value
from rlanything.domains.coding.problems import Check, Rules
from rlanything.domains.programs import Programs
from rlanything.sandbox.protocol import Verdict

MAX_SHOWN = 300  # characters of an input or output that an observation shows
MAX_REMEMBERED = 20_000  # verdicts that are remembered: those of one step of the loop, with some to spare

STANDARD = Rules()
CHECKER_S = 10.0  # processor time of a checker [s]; at least as much as its problem's programs have
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

Trial = tuple[str, Check, float, Rules]
"""A program, a test, the limit of processor time [s], and the rules of the problem."""

logger = logging.getLogger(__name__)


class Trials:
    """Shares one execution among all who try the same program on the same test.

    A policy that is sure of a problem writes the same program many times.
    """

    def __init__(self, programs: Programs, float_tolerance: float, numbers_by_value: bool = True) -> None:
        self.programs, self.float_tolerance, self.numbers_by_value = programs, float_tolerance, numbers_by_value
        self._verdicts: dict[Trial, asyncio.Future[tuple[Verdict, str]]] = {}

    async def verdict(self, program: str, test: Check, time_s: float, rules: Rules = STANDARD) -> tuple[Verdict, str]:
        """Try a program on a test, within `time_s` of processor time [s].

        Returns the verdict and the end of the output, or of standard error if the program failed.
        """
        trial = (program, test, float(time_s), rules)
        if trial not in self._verdicts:
            if len(self._verdicts) >= MAX_REMEMBERED:
                self._verdicts.pop(next(iter(self._verdicts)))
            self._verdicts[trial] = asyncio.ensure_future(self._execute(*trial))
            self._verdicts[trial].add_done_callback(partial(self._forget_failure, trial))
        # A caller that is cancelled must not cancel the execution, which others may share.
        return await asyncio.shield(self._verdicts[trial])

    def _forget_failure(self, trial: Trial, done: asyncio.Future[tuple[Verdict, str]]) -> None:
        """Forget an execution that the sandbox failed at, so that a retry executes it again."""
        if done.cancelled() or done.exception() or done.result()[0] is Verdict.SANDBOX_ERROR:
            self._verdicts.pop(trial, None)

    async def _execute(self, program: str, test: Check, time_s: float, rules: Rules) -> tuple[Verdict, str]:
        source = drivers.calling(program, rules.function) if rules.function else program
        result = await self.programs.run(source, test.input, time_s)
        if result.verdict is not Verdict.OK:
            return result.verdict, clip(result.error, end=True)
        output = result.output.decode("utf-8", "replace")
        if rules.checker:
            return await self._check(test, output, time_s, rules)
        if rules.function:
            right = same_value(test.output, output, self.float_tolerance)
        else:
            right = same_output(test.output, output, self.float_tolerance, self.numbers_by_value)
        return Verdict.OK if right else Verdict.WRONG_ANSWER, clip(output, end=True)

    async def _check(self, test: Check, output: str, time_s: float, rules: Rules) -> tuple[Verdict, str]:
        """Ask the problem's checker. An output that it fails on is wrong."""
        asked = drivers.checker_input(test.input, test.output, output)
        result = await self.programs.run(drivers.checking(rules.checker), asked, max(time_s, CHECKER_S))
        if result.verdict is Verdict.SANDBOX_ERROR:
            return result.verdict, result.error
        if result.verdict is not Verdict.OK:
            logger.warning("a checker failed (%s): %s", result.verdict, clip(result.error, end=True))
        right = result.verdict is Verdict.OK and result.output.split()[-1:] == [drivers.RIGHT.encode()]
        return Verdict.OK if right else Verdict.WRONG_ANSWER, clip(output, end=True)


def describe(verdict: Verdict, error: str) -> str:
    """The verdict as metrics and the rewriter see it: a module that is not there is named."""
    missing = _MISSING.search(error) if verdict is Verdict.RUNTIME_ERROR else None
    return f"missing_module/{missing[1]}" if missing else str(verdict)


def clip(text: str, end: bool = False) -> str:
    """Shorten a text to its first MAX_SHOWN characters, or with `end` to its last."""
    text = text.strip()
    if len(text) <= MAX_SHOWN:
        return text
    return "…" + text[-MAX_SHOWN:] if end else text[:MAX_SHOWN] + "…"

"""Grades answers by algebra: math-verify, executed in the sandbox.

Some answers make it compute without end, and its own time-outs are signals that work in a main thread alone. In the
sandbox each comparison is a fresh program with hard limits, which has imported the library already.
Source: github.com/huggingface/Math-Verify. Its `verify` takes the truth first.
"""

from __future__ import annotations

import json

from rlanything.config.schema import SandboxConfig
from rlanything.domains.base import SandboxFailure
from rlanything.domains.reasoning.answers import Grade, same
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Limits, Verdict

PACKAGES = ("math-verify[antlr4_9_3]==0.9.0",)
NUM_RUNNER = 2  # each holds sympy
LIMITS = Limits(time_s=5.0, wall_s=60.0, memory_mb=1024, output_mb=1)
MAX_REMEMBERED = 20_000  # verdicts: policies repeat their answers
PROGRAM = b"""
import json, logging, sys
logging.disable(logging.CRITICAL)
from math_verify import LatexExtractionConfig, ExprExtractionConfig, parse, verify
truth, answer = json.load(sys.stdin)
def read(text):
    return parse("\\\\boxed{" + text + "}", [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=None)
print(int(verify(read(truth), read(answer), timeout_seconds=None)))
"""


class Grader:
    """Compares answers with truths; `algebra=False` leaves what text and numbers cannot decide undecided, as wrong."""

    def __init__(self, config: SandboxConfig, algebra: bool) -> None:
        self.config, self.algebra = config, algebra
        self._sandbox: Sandbox | None = None
        self._known: dict[tuple[str, str], Grade] = {}

    def start(self) -> None:
        """Start the sandbox, if algebra may be needed. Raises SandboxUnavailable and PackagesUnavailable."""
        if self.algebra and self._sandbox is None:
            self._sandbox = Sandbox(NUM_RUNNER, self.config.allow_unisolated, PACKAGES)

    async def grade(self, answer: str, truth: str) -> Grade:
        """The verdict on an answer. Raises SandboxFailure if the sandbox broke."""
        decided = same(answer, truth) or self._known.get((answer, truth))
        if decided is None:
            decided = await self._by_algebra(answer, truth)
            if len(self._known) >= MAX_REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[answer, truth] = decided
        return decided

    async def _by_algebra(self, answer: str, truth: str) -> Grade:
        if not self.algebra:
            return Grade(right=False, rule="text")
        self.start()
        assert self._sandbox
        asked = json.dumps([truth, answer]).encode()
        result = await self._sandbox.run(PROGRAM, asked, LIMITS)
        if result.verdict is Verdict.SANDBOX_ERROR:
            raise SandboxFailure(f"an answer could not be graded: {result.error}")
        if result.verdict is not Verdict.OK:
            return Grade(right=False, rule=f"math, {result.verdict.replace('_', ' ')}")
        return Grade(right=result.output.strip() == b"1", rule="math")

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None

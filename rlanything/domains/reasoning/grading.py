"""Grades answers by algebra: math-verify, executed in the sandbox.

Some answers make it compute without end, and its own time-outs are signals that work in a main thread alone. In the
sandbox each comparison is a fresh program with hard limits, which has imported the library already.
Source: github.com/huggingface/Math-Verify. Its `verify` takes the truth first.
"""

import json

from rlanything.config.schema import SandboxConfig
from rlanything.domains.base import SandboxFailure
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning.answers import Grade, same
from rlanything.sandbox.protocol import Verdict

TIME_S = 5.0  # processor time of a comparison [s]
LIMITS = {
    "packages": ["math-verify[antlr4_9_3]==0.9.0"],
    "num_runner": 2,  # each holds sympy
    "memory_mb": 1024,
    "output_mb": 1,
    "wall_factor": 12.0,
}
MAX_REMEMBERED = 20_000  # verdicts: policies repeat their answers
PROGRAM = """
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
        self.algebra, self.programs = algebra, Programs(config.model_copy(update=LIMITS))
        self._known: dict[tuple[str, str], Grade] = {}

    def start(self) -> None:
        """Start the sandbox, if algebra may be needed. Raises SandboxUnavailable and PackagesUnavailable."""
        if self.algebra:
            self.programs.start()

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
        result = await self.programs.run(PROGRAM, json.dumps([truth, answer]), TIME_S)
        if result.verdict is Verdict.SANDBOX_ERROR:
            raise SandboxFailure(f"an answer could not be graded: {result.error}")
        if result.verdict is not Verdict.OK:
            return Grade(right=False, rule=f"math, {result.verdict.replace('_', ' ')}")
        return Grade(right=result.output.strip() == b"1", rule="math")

    def close(self) -> None:
        """End the sandbox."""
        self.programs.close()

"""How the reward model judges programs: it writes unit tests, and the sandbox tries every program on them."""

from rlanything.domains.coding import prompts
from rlanything.domains.coding.problems import Check, rules_of
from rlanything.domains.coding.trials import Trials
from rlanything.domains.parts import TestJudging
from rlanything.sandbox.protocol import Verdict
from rlanything.types import Message, Task

MAX_BROKEN = 3  # tries of a program on a generated test if the sandbox breaks


class CodingJudging(TestJudging):
    """A test is an input and the output that a correct program prints."""

    def __init__(self, style: str, trials: Trials) -> None:
        self.style, self.trials = style, trials

    def messages(self, task: Task) -> list[Message]:
        return prompts.test_messages(task.payload, self.style)

    def parse(self, text: str, task: Task) -> tuple[Check | None, str]:
        return prompts.parse_test(text, "function" in task.payload)

    async def passes(self, task: Task, action: str, test: Check) -> int | None:
        """+1 if the program answers the input with the output, -1 if not; None if the sandbox broke every time."""
        time_s, rules = task.payload["time_limit_s"], rules_of(task.payload)
        for _ in range(MAX_BROKEN):
            verdict, _ = await self.trials.verdict(action, test, time_s, rules)
            if verdict is not Verdict.SANDBOX_ERROR:
                return 1 if verdict is Verdict.OK else -1
        return None

    def reference(self, task: Task) -> str | None:
        return task.payload.get("solution")

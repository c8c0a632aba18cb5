"""The reward model judges a solver's steps: each call with its output, and the answer."""

from typing import ClassVar

from rlanything.domains.parts import StepJudging, conversation
from rlanything.types import Message, Task, Trajectory

JUDGE_SYSTEM = (
    "You judge single steps of a solver that may run Python code. You read a problem, what the solver wrote so far, "
    "and what its code showed. A call is good if its code computes something that the solution needs and that was not "
    "known yet, or checks a result; it is bad if the code is wrong for the problem, fails, shows nothing, or repeats "
    "what is known. An answer is good if it is right. Check the last step only: compare its numbers with the "
    "problem's, and its answer with what the code showed. Then give \\boxed{1} for good or \\boxed{-1} for bad."
)


class ReasoningJudging(StepJudging):
    """The reward model reads the problem and the transcript, and judges the last step."""

    system: ClassVar[str] = JUDGE_SYSTEM
    question: ClassVar[str] = "Is step {number}, the last one, good or bad?"

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        past = "".join(f"\n> {t.text.strip()}\n{t.observation}" for t in trajectory.turns[: i + 1])
        asked = f"{trajectory.first_observation}{past}\n{self.question.format(number=i + 1)}"
        return conversation(self.system, asked, self.style)

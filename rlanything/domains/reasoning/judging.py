"""The reward model judges a solver's steps: each call with its output, and the answer."""

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

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        asked = f"{transcript(trajectory, i)}\nIs step {i + 1}, the last one, good or bad?"
        return conversation(JUDGE_SYSTEM, asked, self.style)


def transcript(trajectory: Trajectory, i: int) -> str:
    """The problem, what the solver wrote up to turn i, and what its code showed."""
    past = "".join(f"\n> {t.text.strip()}\n{t.observation}" for t in trajectory.turns[: i + 1])
    return f"{trajectory.first_observation}{past}"

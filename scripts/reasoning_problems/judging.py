"""A judge for tiny models: it writes the step that was due, and the vote is whether the step done is the same.

A tiny model learns to write the due step, as a policy does, but not to compare two numbers in its head.
"""

from __future__ import annotations

from rlanything.domains.reasoning.answers import boxed
from rlanything.domains.reasoning.calls import call_text, read_calls
from rlanything.domains.reasoning.demonstrations import answer_text
from rlanything.domains.reasoning.judging import ReasoningJudging
from rlanything.types import Task, Turn

from .generator import EASY


class DueStepJudging(ReasoningJudging):
    """The reward model writes the call or the answer that is due. A step is good if it holds all of that."""

    system = (
        "You read a problem, and what a solver that may run Python code did. Write what was due in place of its last "
        "step, as the solver would: a call, or the answer in a box."
    )
    question = "What was due in place of step {number}?"

    def parse(self, text: str, turn: Turn | None = None) -> tuple[int | None, str]:
        assert turn is not None, "a demonstrated judgement lacks Conversation.judged"
        due = _steps(text)
        if not due:
            return None, "no call that can be read, and no \\boxed{...}"
        return 1 if due <= _steps(turn.text) else -1, ""

    def answer(self, task: Task, turn: Turn) -> str:
        """The judgement is the step that was due.

        In place of the bare answer to an easy problem it is the answer, which the head can find. For other problems it
        is the call: a guess counts as bad even if it is right.
        """
        head = task.payload["kind"] == EASY and not read_calls(turn.text)
        if head or turn.reason not in task.payload["cells"]:
            return answer_text(task.payload["answer"])
        return call_text(turn.reason)


def _steps(text: str) -> set[str]:
    """The codes of a text's calls, or its answer, without white space. Empty if there is neither."""
    found = [call.code for call in read_calls(text)] or [boxed(text) or ""]
    return {"".join(step.split()) for step in found} - {""}

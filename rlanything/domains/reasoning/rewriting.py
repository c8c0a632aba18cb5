"""Harder and easier problems, each with a program that proves its answer."""

from collections import Counter
from dataclasses import replace

from rlanything.domains.answers import last_object
from rlanything.domains.parts import RejectedTask, Rewriting, conversation, variant_of
from rlanything.domains.problems import one_line, root_question, short
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning import prompts
from rlanything.domains.reasoning.answers import LONGEST, boxed, normal
from rlanything.domains.rows import BadProblem, check_characters
from rlanything.sandbox.protocol import Execution, Verdict
from rlanything.types import Direction, Group, Message, Task, Trajectory, Turn

MAX_WRITTEN = 20_000  # characters of a question and its program
MAX_ANSWERS = 3  # commonest answers that a critic tells
MAX_TOLD = 200  # characters of a turn in the critic
SEEDS = (1, 2)  # a program that draws random numbers answers differently under each
# The program is compiled by itself: a `from __future__` in it must come first.
PROOF = """\
import random, sys
random.seed({seed})
if "numpy" in sys.modules:
    sys.modules["numpy"].random.seed({seed})
exec(compile({program!r}, "program.py", "exec"), {{"__name__": "__main__"}})
"""


class ReasoningRewriting(Rewriting):
    """The rewriter writes a problem together with a program that prints its answer.

    The program is executed twice before anybody tries the problem. The answer is what it prints, and not what the
    rewriter says; that the program fits its question is left to the acceptance gate.
    """

    def __init__(self, style: str, programs: Programs, time_s: float) -> None:
        """`time_s` is the processor time that a proof may take [s]."""
        self.style, self.programs, self.time_s = style, programs, time_s

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str) -> list[Message]:
        root = root_question(task)
        original = "" if root == task.payload["question"] else f"Original problem: {root}\n"
        problem = f"{original}Problem: {prompts.stated(task.payload)}"
        asked = f"{problem}\nSolved: {accuracy:.0%}\n{critic}\nMake it {direction}."
        return conversation(prompts.REWRITE_SYSTEM, asked, self.style)

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        """The proposed problem with its program, which `prove` replaces by the answer. Raises RejectedTask."""
        found = last_object(text, ["question", "program"])
        if found is None:
            raise RejectedTask("no_proposal", "no JSON object with a question and a program")
        question, program = found["question"], found["program"]
        if not all(isinstance(value, str) and value.strip() for value in (question, program)):
            raise RejectedTask("schema", "question, program: expected two texts that are not empty")
        if len(question) + len(program) > MAX_WRITTEN:
            raise RejectedTask("too_large", f"{len(question) + len(program)} characters, more than {MAX_WRITTEN}")
        payload = {"question": question.strip(), "program": program, "kind": task.payload["kind"]}
        try:
            check_characters(payload)
        except BadProblem as problem:
            raise RejectedTask("schema", str(problem)) from problem
        if one_line(payload) == one_line(task.payload):
            raise RejectedTask("unchanged", "the same question again")
        return variant_of(task, payload | {"root": root_question(task)}, direction, task_id)

    async def prove(self, task: Task) -> Task:
        """The problem with the answer that its program prints. Raises RejectedTask if it fails, takes too long, prints
        no short answer, or another one when the random numbers differ."""
        payload = dict(task.payload)
        program = payload.pop("program")
        first, second = [_printed(await self._run(program, seed)) for seed in SEEDS]
        if first != second:
            raise RejectedTask("program_random", f"{first!r:.80} and {second!r:.80}")
        return replace(task, payload=payload | {"answer": first})

    def critic(self, group: Group) -> str:
        """The answers that were given and how often, and what the reward model said of steps in more than a score.

        Compact prompts hold the answers alone: remarks with their calls do not fit the contexts of tiny models.
        """
        answers = Counter(f"{_given(t)} ({'right' if t.success else 'wrong'})" for t in group.valid)
        commonest = sorted(answers.items(), key=lambda counted: (-counted[1], counted[0]))[:MAX_ANSWERS]
        told = ", ".join(f"{answer} x{n}" for answer, n in commonest)
        spoke = any(judgement.text.partition("\\boxed")[0].strip() for judgement in group.judgements)
        spoke = spoke and self.style != "compact"
        return "\n".join([f"Answers: {told or 'none'}.", *([super().critic(group)] if spoke else [])])

    def told(self, turn: Turn) -> str:
        return short(boxed(turn.text) or turn.text, MAX_TOLD)

    async def _run(self, program: str, seed: int) -> Execution:
        result = await self.programs.run(PROOF.format(program=program, seed=seed), "", self.time_s)
        if result.verdict is Verdict.SANDBOX_ERROR:
            raise RejectedTask("sandbox_error", result.error)
        return result


def _given(trajectory: Trajectory) -> str:
    """An episode's answer in a few words; of a program how its tests ended."""
    if trajectory.score is not None and trajectory.score.answer:
        return short(trajectory.score.answer, MAX_TOLD)
    results = trajectory.turns[-1].results if trajectory.turns else ()
    return short(", ".join(dict.fromkeys(results)), MAX_TOLD) or "none"


def _printed(result: Execution) -> str:
    """The answer that a program printed. Raises RejectedTask."""
    if result.verdict is Verdict.TIME_LIMIT:
        raise RejectedTask("program_slow", "the program took too long")
    if result.verdict is not Verdict.OK:
        raise RejectedTask("program_failed", f"{result.verdict}: {result.error[-200:]}")
    answer = result.output.decode("utf-8", "replace").strip()
    if not normal(answer) or len(answer) > LONGEST or "\n" in answer:
        raise RejectedTask("program_answer", f"printed {answer!r:.80}, expected one short line")
    return answer

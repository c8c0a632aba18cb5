"""Domains of one's own, from thirty lines to all parts; docs/your-own-domain.md explains them.

The regions between `# [name]` and `# [/name]` are shown there.
"""

# [play]
import random
from dataclasses import dataclass

from rlanything.domains.base import Domain, Env, Observation
from rlanything.types import Task


class SumEnv(Env):
    def __init__(self, task: Task) -> None:
        self.question, self.answer = task.payload["question"], task.payload["answer"]

    async def reset(self) -> Observation:
        return Observation(self.question)

    async def step(self, action: str | None) -> Observation:
        right = action == self.answer
        return Observation("right" if right else "wrong", done=True, success=right)


class Sums(Domain):
    @dataclass
    class Options:
        top: int = 9

    def tasks(self, split: str) -> list[Task]:
        draw = random.Random(split).randint
        pairs = [(draw(0, self.options.top), draw(0, self.options.top)) for _ in range(64)]
        asked = [{"question": f"{a} + {b} = ?", "answer": str(a + b)} for a, b in pairs]
        return [Task(id=f"{split}/{i}", payload=payload) for i, payload in enumerate(asked)]

    def make_env(self, task: Task) -> Env:
        return SumEnv(task)


# [/play]
# [judged]
from rlanything.domains.base import ParsedAction  # noqa: E402
from rlanything.domains.parts import RejectedTask, StepJudging  # noqa: E402
from rlanything.types import Message, Score, Trajectory, system, user  # noqa: E402


class TwoTries(SumEnv):
    """A wrong answer may be corrected once. Step labels say who came nearer; the score counts tries."""

    async def reset(self) -> Observation:
        self.tries, self.miss = 0, float("inf")
        return await super().reset()

    async def step(self, action: str | None) -> Observation:
        miss = abs(int(action) - int(self.answer)) if action else float("inf")
        label, self.miss, self.tries = (1 if miss < self.miss else -1), miss, self.tries + 1
        over = miss == 0 or self.tries == 2
        text = "right" if miss == 0 else "wrong, try again"
        state = f"{self.question} missed by {miss}"  # turns of a group that began here can be compared
        return Observation(text, done=over, success=miss == 0, invalid=action is None, label=label, state=state)

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, reward=1.5 - 0.5 * self.tries if last.success else 0.0)


class SumJudging(StepJudging):
    """The default judge's answers, asked for in words that fit sums."""

    def messages(self, task: Task, trajectory: Trajectory, i: int) -> list[Message]:
        said = ", then ".join(turn.text.strip() for turn in trajectory.turns[: i + 1])
        return [
            system(
                "You check sums. Give \\boxed{1} if the last answer is right or nearer than before, else \\boxed{-1}."
            ),
            user(f"{task.payload['question']} The answers: {said}"),
        ]


class JudgedSums(Sums):
    system = "Answer with a whole number and nothing else. After a wrong answer you may try once more."

    def __init__(self, config):
        super().__init__(config)
        self.judging = SumJudging(config.dataset.prompt)

    def make_env(self, task: Task) -> Env:
        return TwoTries(task)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        text = text.strip()
        return ParsedAction(text) if text.isdecimal() else ParsedAction(None, "no whole number")

    def check(self, task: Task) -> None:
        """A rewritten sum whose answer is wrong would be solved by nobody: refuse it at once."""
        a, plus, b, *_ = [*task.payload["question"].split(), "", "", ""]
        if plus != "+" or not (a.isdecimal() and b.isdecimal()):
            raise RejectedTask("no_sum", task.payload["question"])
        if str(int(a) + int(b)) != task.payload["answer"]:
            raise RejectedTask("wrong_answer", f"{a} + {b} is not {task.payload['answer']}")


# [/judged]
# [demonstrated]
from collections.abc import Iterator  # noqa: E402

from rlanything.domains.parts import Conversation, Demonstrating  # noqa: E402
from rlanything.errors import TaskError  # noqa: E402
from rlanything.types import Prompt, Turn, assistant  # noqa: E402


class SumDemonstrating(Demonstrating):
    """Right answers for the policy, and judgements of right and wrong answers for the reward model."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        answer = {"policy": self._policy, "reward": self._reward}.get(role)
        if answer is None:
            raise TaskError(f"sums have no demonstrations for the {role}")
        return self._stream(answer, self.domain.tasks(split), random.Random(seed))

    def _stream(self, answer, tasks, rng) -> Iterator[Conversation]:
        while True:
            messages, said = answer(rng.choice(tasks), rng)
            yield Conversation(messages=[*messages, assistant(said)], trained=[False] * len(messages) + [True])

    def _policy(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        return self.domain.opening(task, Observation(task.payload["question"])), task.payload["answer"]

    def _reward(self, task: Task, rng: random.Random) -> tuple[list[Message], str]:
        right = rng.random() < 0.5
        said = task.payload["answer"] if right else str(int(task.payload["answer"]) + rng.choice([-2, -1, 1, 2]))
        observation = "right" if right else "wrong"
        turn = Turn(
            prompt=Prompt(ids=[]), response_ids=[], logprobs=[], text=said, action=said, observation=observation
        )
        episode = Trajectory(task_id=task.id, index=0, first_observation=task.payload["question"], turns=[turn])
        return self.domain.judging.messages(task, episode, 0), f"\\boxed{{{1 if right else -1}}}"


class DemonstratedSums(Sums):
    def __init__(self, config):
        super().__init__(config)
        self.demonstrating = SumDemonstrating(self)


# [/demonstrated]
# [tools]
import json  # noqa: E402
from typing import Any  # noqa: E402

from rlanything.types import tool  # noqa: E402

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum of two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


class CalculatorEnv(SumEnv):
    """A call of the tool is answered; anything else is the answer."""

    async def step(self, action: str | None) -> Observation:
        if action and action.startswith("{"):
            call = json.loads(action)
            return Observation(str(call["a"] + call["b"]), state=f"{self.question} {action}")
        return await super().step(action)


class ToolSums(Sums):
    def tools(self) -> list[dict[str, Any]]:
        return [ADD]

    def make_env(self, task: Task) -> Env:
        return CalculatorEnv(task)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        """The arguments of a call in the hermes form, or the answer."""
        _, called, rest = text.partition("<tool_call>")
        if not called:
            return ParsedAction(text.strip())
        try:
            arguments = json.loads(rest.partition("</tool_call>")[0])["arguments"]
            return ParsedAction(json.dumps({"a": int(arguments["a"]), "b": int(arguments["b"])}))
        except (ValueError, KeyError, TypeError) as error:
            return ParsedAction(None, f"a tool call that cannot be read: {error!r}")

    def answer(self, observation: Observation) -> list[Message]:
        return [tool(observation.text, "add")]


# [/tools]
# [images]
import io  # noqa: E402

from PIL import Image, ImageDraw  # noqa: E402


class DrawnSums(Sums):
    """The question is a picture; a vision-language model reads it."""

    def make_env(self, task: Task) -> Env:
        return DrawnEnv(task, self)


class DrawnEnv(SumEnv):
    def __init__(self, task: Task, domain: Domain) -> None:
        super().__init__(task)
        self.images = domain.images

    async def reset(self) -> Observation:
        picture, file = Image.new("RGB", (160, 40), "white"), io.BytesIO()
        ImageDraw.Draw(picture).text((10, 10), self.question, fill="black")
        picture.save(file, "PNG")
        return Observation("What is the sum in the picture?", images=(self.images.put(file.getvalue()),))


# [/images]

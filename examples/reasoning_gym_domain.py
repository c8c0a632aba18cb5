"""Tasks of reasoning-gym as a domain: more than 100 generators with verifiers, which nobody here wrote.

`rlanything train config=examples/reasoning_gym.yaml`; needs `pip install reasoning-gym` (Apache-2.0). A task is a
generator, a seed and a level; the rewriter's direction is a step of the generator's own curriculum.
"""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import reasoning_gym
from reasoning_gym.factory import create_curriculum

from rlanything.domains.answers import boxed
from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.domains.parts import Conversation, Demonstrating, RejectedTask, Rewriting, variant_of
from rlanything.errors import TaskError
from rlanything.types import Direction, Prompt, Score, Task, Trajectory, Turn, assistant, user

RIGHT, WRONG = "That is right.", "That is wrong."
SPLITS = {"train": 0, "eval": 1_000_000}  # where the seeds of a split begin


class Question(Env):
    """One question, answered in one turn; the generator's verifier gives partial credit."""

    def __init__(self, task: Task) -> None:
        curriculum = create_curriculum(task.payload["generator"])
        for name, attribute in curriculum.attributes.items():
            curriculum.set_attr_level(name, min(task.payload["level"], len(attribute.levels) - 1))
        settings = asdict(curriculum.generate_configuration()) | {"seed": task.payload["seed"], "size": 1}
        self.dataset = reasoning_gym.create_dataset(task.payload["generator"], **settings)
        self.reward = 0.0

    async def reset(self) -> Observation:
        return Observation(self.dataset[0]["question"])

    async def step(self, action: str | None) -> Observation:
        self.reward = self.dataset.score_answer(action, entry=self.dataset[0]) if action else 0.0
        solved = self.reward >= 1.0
        return Observation(RIGHT if solved else WRONG, done=True, success=solved)

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, reward=self.reward)


class ByLevel(Rewriting):
    """A harder task is of the next level, an easier one of the level before; the rewriter only names a seed."""

    def messages(self, task: Task, direction: Direction, accuracy: float, critic: str):
        return [user(f"Name a whole number, at random, in \\boxed{{}}, for a new task {direction} than: {task.id}")]

    def parse(self, text: str, task: Task, direction: Direction, task_id: str) -> Task:
        level = task.payload["level"] + (1 if direction is Direction.HARDER else -1)
        if level < 0:
            raise RejectedTask("no_level", "the task is of the lowest level")
        number = next((n for n in reversed(boxed(text)) if n.isdecimal()), None)
        seed = int(number) if number else task.payload["seed"]
        return variant_of(task, task.payload | {"level": level, "seed": seed}, direction, task_id)


class Answers(Demonstrating):
    """Right answers for a policy that knows no form yet, and judgements of right and wrong ones for its judge."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        if role == "rewriter":
            raise TaskError("the rewriter of reasoning-gym's tasks names a number, which needs no demonstration")
        return self._stream(role, split, random.Random(seed))

    def _stream(self, role: str, split: str, rng: random.Random) -> Iterator[Conversation]:
        tasks = self.domain.tasks(split)
        while True:
            task, other = rng.choice(tasks), rng.choice(tasks)
            question, said = self.domain.make_env(task).dataset[0], self.domain.make_env(other).dataset[0]
            if role == "policy":
                asked = self.domain.opening(task, Observation(question["question"]))
                answer = f"\\boxed{{{question['answer']}}}"
            else:
                right = rng.random() < 0.5
                text = f"\\boxed{{{question['answer'] if right else said['answer']}}}"
                verdict = RIGHT if right else WRONG
                turn = Turn(
                    prompt=Prompt(ids=[]), response_ids=[], logprobs=[], text=text, action="", observation=verdict
                )
                episode = Trajectory(task_id=task.id, index=0, first_observation=question["question"], turns=[turn])
                asked, answer = self.domain.judging.messages(task, episode, 0), f"\\boxed{{{1 if right else -1}}}"
            yield Conversation(messages=[*asked, assistant(answer)], trained=[False] * len(asked) + [True])


class ReasoningGym(Domain):
    @dataclass
    class Options:
        generator: str = "chain_sum"
        level: int = 0
        size: int = 512

    def __init__(self, config):
        super().__init__(config)
        self.system = "" if config.dataset.prompt == "compact" else "Think first, then answer in \\boxed{}."
        self.rewriting = ByLevel(config.dataset.prompt, self.check)
        self.demonstrating = Answers(self)

    def tasks(self, split: str) -> list[Task]:
        options, first = self.options, SPLITS[split]
        payload = {"generator": options.generator, "level": options.level}
        return [Task(id=f"{split}/{i}", payload=payload | {"seed": first + i}) for i in range(options.size)]

    def make_env(self, task: Task) -> Env:
        return Question(task)

    def kind(self, task: Task) -> str:
        return f"level {task.payload['level']}"

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        answers = boxed(text)
        return ParsedAction(answers[-1]) if answers else ParsedAction(None, "no \\boxed{answer}")

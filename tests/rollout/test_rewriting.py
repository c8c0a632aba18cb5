"""Proposals: the first valid one of a task's becomes a candidate, and every rejection is counted with its reason."""

import asyncio

import pytest
from builders import config_of, group, trajectory

from rlanything.algorithm.diagnostics import tally
from rlanything.algorithm.summary import summary
from rlanything.algorithm.tasks import TaskPool
from rlanything.config.schema import AdaptationConfig, ModelConfig
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.alfworld.goals import goals_of, write_sentence
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.simulator import Episode
from rlanything.engines.base import Completion, PromptTooLong
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.rewriting import rewrite
from rlanything.types import Direction


class Scripted:
    """An engine that gives the answers that a test names, and keeps the prompts."""

    def __init__(self, chat: Chat, answers: list[str]) -> None:
        self.chat, self.answers, self.prompts = chat, answers, []

    async def generate(self, prompt, sampling, n=1, images=()):
        self.prompts.append(self.chat.decode(prompt))
        if not self.answers:
            raise PromptTooLong("too long")
        return [Completion(self.chat.encode(text), [], "stop") for text in self.answers[:n]]


@pytest.fixture
def domain(world, tmp_path):
    made = AlfworldDomain(config_of("alfworld", world.games, max_step=40, show_actions="here"))
    made.rewriting.waiting = tmp_path / "temp_train"
    return made


def other_sentence(domain, task) -> str:
    """The sentence of some other winnable goal of the task's room."""
    game = domain.games.by_source(task.id)
    for goal in goals_of(game):
        if goal != game.goal and plan(Episode(game.with_goal(goal, ""))):
            return write_sentence(goal)
    raise AssertionError("the room has no other goal")


def ask(domain, world, answers):
    """Rewrite a task that all of 8 episodes solved; `answers` is a function of the task. Returns (counts, pool, the
    prompt)."""
    chat = Chat(ModelConfig(path=str(world.model)))
    pool = TaskPool.of(domain.tasks("train"), 0.2, 0.8, seed=0)
    [task] = pool.draw(1, 0)
    solved = [trajectory(1, [(1, 1), (-1, -1)]), *(trajectory(1, [(1, 1)]) for _ in range(7))]
    played = group(*solved, task=task)
    groups = [summary(played, tally(played), domain.rewriting.critic(played))]
    engine, config = Scripted(chat, answers(task)), AdaptationConfig(num_try=8)
    requests = pool.rewrite_requests(groups, 4, 2)
    counts = asyncio.run(rewrite(requests, pool, ChatModel(engine, chat), domain, config, "seed", step=7))
    return counts, pool, engine.prompts[0]


def test_the_first_valid_proposal_becomes_a_candidate_and_the_others_are_counted(domain, world):
    def answers(task):
        sentences = ["put a unicorn in cabinet.", domain.describe(task), other_sentence(domain, task), "never read"]
        return ["no idea", *(f"harder: \\boxed{{{s}}}" for s in sentences)]

    counts, pool, prompt = ask(domain, world, answers)
    assert counts == {"proposed": 1, "rejected_no_proposal": 1, "rejected_unknown_object": 1, "rejected_unchanged": 1}
    [candidate] = pool.candidates.values()
    task = candidate.task
    assert (task.direction, task.born_step, candidate.parent_accuracy) == (Direction.HARDER, 7, 1.0)
    assert domain.describe(task) == other_sentence(domain, pool.active[task.parent_id])
    assert (domain.rewriting.waiting / task.payload["folder"] / "game.tw-pddl").is_file()
    assert "8 solved episodes" in prompt and "bad x2: look: says {(0, 1): -1}" in prompt


def test_a_prompt_that_does_not_fit_is_a_counted_rejection(domain, world):
    counts, pool, _ = ask(domain, world, lambda task: [])
    assert counts == {"rejected_prompt_too_long": 1} and not pool.candidates
    assert pool.drain_events()[-1]["reasons"] == {"prompt_too_long": 1}

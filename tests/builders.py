"""Small hand-made groups, configurations and episodes for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlanything.algorithm.diagnostics import SameAnswer, figures, tally
from rlanything.algorithm.summary import GroupSummary, Tally, summary
from rlanything.config.schema import Config, DatasetConfig, ExperimentConfig, RolloutConfig, SandboxConfig
from rlanything.domains.base import Domain, Observation
from rlanything.types import Ending, Group, Judgement, Prompt, Score, Status, Task, Trajectory, Turn

Scores = Sequence[int | None]


def turn(label: int | None = None, state: str = "") -> Turn:
    """A turn of 3 prompt and 2 response tokens."""
    return Turn(
        prompt=Prompt(ids=[1, 2, 3]),
        response_ids=[4, 5],
        logprobs=[-0.1, -0.2],
        text="text",
        action="look",
        observation="seen",
        label=label,
        state=state,
    )


class Episode(Trajectory):
    """An episode that remembers the scores of each turn until its group is built."""

    votes: Sequence[Scores] = ()


def trajectory(outcome: int, turns: Sequence[Scores], index: int = 0, status: Status = Status.COMPLETED) -> Episode:
    """An episode with one turn for every entry of `turns`, which holds that turn's scores."""
    ending = Ending.BROKEN if status.is_failure else Ending.DONE
    made = Episode(task_id="q", index=index, first_observation="room", status=status, ending=ending)
    made.turns = [turn() for _ in turns]
    made.score, made.votes = Score(success=outcome > 0), turns
    return made


def judgement(scores: dict[tuple[int, int], int | None], **fields) -> Judgement:
    """A judgement of 2 prompt tokens and 1 response token."""
    error = "" if any(s is not None for s in scores.values()) else "none"
    made = Judgement(prompt=Prompt(ids=[1, 2]), response_ids=[3], logprobs=[-0.5], text=f"says {scores}", scores=scores)
    made.parse_error = fields.pop("parse_error", error)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def summaries(groups: Sequence[Group], same: SameAnswer = lambda task, answer: answer) -> list[GroupSummary]:
    """What the loop keeps of groups."""
    return [summary(g, tally(g, same)) for g in groups]


def diagnostics(groups: Sequence[Group]) -> dict[str, float]:
    """The figures of groups."""
    return figures(Tally.of_all(map(tally, groups)))


def group(*trajectories: Episode, task: Task | None = None) -> Group:
    """The episodes of one task, indexed in order, with one judgement for every score."""
    made = Group(task=task or Task(id="q", payload={}), trajectories=list(trajectories))
    for e, t in enumerate(trajectories):
        t.index = e
        made.judgements += [judgement({(e, i): s}) for i, scores in enumerate(t.votes) for s in scores]
    return made


def config_of(domain: str, path: Path | str = "", max_step: int = 20, sandbox: SandboxConfig | None = None, **options):
    """The configuration that a domain is made from."""
    return Config(
        experiment=ExperimentConfig(name="test"),
        dataset=DatasetConfig(domain=domain, path=str(path), prompt="compact", options=options),
        rollout=RolloutConfig(max_interaction_step=max_step),
        sandbox=sandbox or SandboxConfig(),
    )


async def episode(domain: Domain, task: Task, *responses: str) -> tuple[list[Observation], Score]:
    """The observations and the score of an episode with these responses."""
    env = domain.make_env(task)
    try:
        seen = [await env.reset()]
        for response in responses:
            seen.append(await env.step(domain.parse_action(response, seen[-1]).action))
        return seen, await env.score(seen[-1])
    finally:
        await env.close()

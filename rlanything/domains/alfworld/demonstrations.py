"""Demonstrations to warm-start models from: of acting, of judging steps, of rewriting tasks.

Wrong actions are mixed into the demonstrations, so that a model sees how to recover; they are not trained on, and
nothing in the text marks them. The judge's demonstrations are episodes of all qualities, labelled by the planner.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from rlanything.domains.alfworld.explorer import Explorer, Prior
from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.prompts import (
    action_response,
    judge_messages,
    rewrite_messages,
    score_response,
    user_message,
)
from rlanything.domains.alfworld.rooms import facts_of, goals_of
from rlanything.domains.alfworld.sentences import write_sentence
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.domains.base import Conversation, Observation, Step, TaskError
from rlanything.types import Direction, Message, Trajectory, Turn

SEARCH_NOISE = 0.7  # of the explorer's search order: a policy that always searches alike explores too little
POLICY_ERRORS = 0.15  # share of wrong actions in demonstrations of acting
JUDGE_ERRORS = (0.1, 0.6)  # range of that share in episodes to be judged
JUDGE_LAPSES = (0.0, 0.8)  # range of the explorer's lapses there: a small policy overlooks, forgets and wanders
JUDGE_NOTHING = 0.25  # share of the steps that did nothing that are judged: the easiest half of an episode else
MAX_MISSES = 1000  # games in a row without a demonstration: there will be none
TWO_TEMPLATES = 2  # sentences a goal


def wrong_action(explorer: Explorer, rng: random.Random) -> tuple[str, str]:
    """(thought, command) of a mistake that a small policy makes: a thing that is not there, a known place, idling.

    The thought fits the mistake: after "mug: take" and no mug, what follows has to be seen to be learned. And a reward
    model that has not seen wandering between known places takes it for search, and teaches the policy to wander.
    """
    here = explorer.here or rng.choice(explorer.receptacles)
    wanted = explorer.object_type
    draw = rng.random()
    if draw < 0.35:
        return f"{wanted}: take", f"take {wanted} {rng.randint(1, 3)} from {here}"
    if draw < 0.8:
        known = rng.choice(sorted(explorer.visited) or explorer.receptacles)
        return f"{wanted}: find", f"go to {rng.choice([here, known, known, rng.choice(explorer.receptacles)])}"
    if draw < 0.9:
        return f"{wanted}: find", f"open {here}"
    return f"{wanted}: find", rng.choice(["look", "inventory", f"examine {here}"])


def act_demonstration(
    game: Game, prior: Prior, rng: random.Random, max_step: int, show_actions: str
) -> Conversation | None:
    """One episode as a conversation; None where the explorer does not finish in time."""
    episode = Episode(game)
    first = Observation(episode.reset(), tuple(episode.admissible))
    explorer = Explorer(game.goal, first.text, prior, rng, SEARCH_NOISE)
    messages: list[Message] = []
    trained: list[bool] = []
    steps: list[Step] = []
    for _ in range(max_step):
        thought, command = explorer.act()
        right = rng.random() >= POLICY_ERRORS
        thought, command = (thought, command) if right else wrong_action(explorer, rng)
        messages.append(user_message(first, steps, "append_only", show_actions))
        messages.append({"role": "assistant", "content": action_response(thought, command)})
        trained += [False, right]
        feedback, won = episode.step(command)
        explorer.observe(command, feedback)
        steps.append(Step("", command, Observation(feedback, tuple(episode.admissible))))
        if won:
            return Conversation(messages, trained)
    return None


def stray_action(explorer: Explorer, taken: Sequence[str], admissible: Sequence[str], rng: random.Random) -> str:
    """A command that an agent under training may come to: a mistake as above, one of its own over again, any other.

    What the reward model was never shown it may take for progress, and then the policy soon does little else.
    """
    draw = rng.random()
    if draw < 0.4:
        return wrong_action(explorer, rng)[1]
    if draw < 0.7 and taken:
        return rng.choice(taken)
    verb = rng.choice(sorted({command.split()[0] for command in admissible} - {"help"}))  # nearly all would be "go"
    return rng.choice([command for command in admissible if command.startswith(verb)])


def judge_demonstrations(
    game: Game, prior: Prior, rng: random.Random, max_step: int, style: str
) -> Iterator[Conversation]:
    """The judgements of one episode's steps; they share the transcript, hence the key."""
    episode = Episode(game)
    trajectory = Trajectory(game.source, 0, episode.reset())
    lapse = rng.uniform(*JUDGE_LAPSES)
    explorer = Explorer(game.goal, trajectory.first_observation, prior, rng, SEARCH_NOISE, lapse)
    progress = Progress(episode)
    errors = rng.uniform(*JUDGE_ERRORS)
    taken: list[str] = []
    for i in range(max_step):
        _, command = explorer.act()
        if rng.random() < errors:
            command = stray_action(explorer, taken, episode.admissible, rng)
        taken.append(command)
        feedback, won = episode.step(command)
        explorer.observe(command, feedback)
        label, reason = progress.step(command, feedback)
        trajectory.turns.append(Turn([], [], [], "", command, feedback))
        if feedback == NOTHING_HAPPENS and rng.random() >= JUDGE_NOTHING:
            continue
        answer: Message = {"role": "assistant", "content": score_response(reason, label)}
        messages = [*judge_messages(trajectory, i, style), answer]
        yield Conversation(messages, [False] * (len(messages) - 1) + [True], key=game.source)
        if won:
            return


def rewrite_demonstration(game: Game, rng: random.Random, style: str) -> Conversation | None:
    """A task and a variant of it that is harder or easier by the planner's measure; None where the room has none."""
    effort = _effort(game, game.goal)
    direction = rng.choice([Direction.HARDER, Direction.EASIER])
    options = [g for g in goals_of(game) if g != game.goal]
    rng.shuffle(options)
    for goal in options:
        other = _effort(game, goal)
        if (
            other is None
            or effort is None
            or (other > effort) is not (direction is Direction.HARDER)
            or other == effort
        ):
            continue
        accuracy = rng.uniform(0, 0.2) if direction is Direction.EASIER else rng.uniform(0.8, 1)
        messages = rewrite_messages(game.sentence, facts_of(game), direction, round(accuracy * 8) / 8, "", style)
        sentence = write_sentence(goal, rng.randrange(TWO_TEMPLATES))
        answer: Message = {"role": "assistant", "content": f"\\boxed{{{sentence}}}"}
        return Conversation([*messages, answer], [False] * len(messages) + [True])
    return None


def _effort(game: Game, goal: Goal) -> float | None:
    """How hard a goal is to reach for one who must search: steps of the plan, and how hidden its object is."""
    commands = plan(Episode(game.with_goal(goal, "")))
    if not commands:
        return None
    holders = {r for o in game.objects if o.type == goal.object_type for r in game.places(o)}
    hidden = sum(r.openable for r in holders) / max(1, len(holders))
    rarity = 1 / max(1, len(holders))
    return len(commands) + 2 * hidden + 2 * rarity + (1 if goal.kind is GoalKind.TWO else 0)


def conversations(
    role: str, games: Sequence[Game], prior: Prior, rng: random.Random, max_step: int, style: str, show_actions: str
) -> Iterator[Conversation]:
    """An endless stream of demonstrations for a role: policy, reward or rewriter.

    Raises TaskError where MAX_MISSES games in a row give none.
    """
    misses = 0
    while misses < MAX_MISSES:
        game = rng.choice(games)
        if role == "reward":
            yield from judge_demonstrations(game, prior, rng, max_step, style)
            continue
        conversation = (
            act_demonstration(game, prior, rng, max_step, show_actions)
            if role == "policy"
            else rewrite_demonstration(game, rng, style)
        )
        misses += 1
        if conversation is not None:
            misses = 0
            yield conversation
    raise TaskError(
        f"no demonstration for the {role} in {MAX_MISSES} tries: {max_step} turns an episode are too few for these "
        "games, or their rooms leave no other task; raise max_interaction_step, or choose other games"
    )

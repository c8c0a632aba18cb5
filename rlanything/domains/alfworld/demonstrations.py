"""Demonstrations to warm-start models from: of acting, of judging steps, of rewriting tasks.

Wrong actions are mixed into the demonstrations, so that a model sees how to recover. They are not trained on, and
nothing in the text marks them. The judge's demonstrations are episodes of all qualities, labelled by the planner.
"""

import random
from collections.abc import Iterator, Sequence

from rlanything.domains.alfworld.explorer import Explorer, Prior, make_prior
from rlanything.domains.alfworld.goals import TEMPLATES, goals_of, write_sentence
from rlanything.domains.alfworld.library import GameLibrary
from rlanything.domains.alfworld.model import Game, Goal, GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.progress import Progress
from rlanything.domains.alfworld.prompts import Prompts
from rlanything.domains.alfworld.simulator import NOTHING_HAPPENS, Episode
from rlanything.domains.base import Observation
from rlanything.domains.parts import Conversation, Demonstrating
from rlanything.errors import TaskError
from rlanything.types import Direction, Message, Prompt, Trajectory, Turn, assistant

POLICY_ERRORS = 0.15  # share of wrong actions in demonstrations of acting
JUDGE_ERRORS = (0.1, 0.6)  # range of that share in episodes to be judged
JUDGE_LAPSES = (0.0, 0.8)  # range of the explorer's lapses there: a small policy overlooks, forgets and wanders
JUDGE_NOTHING = 0.25  # share of the judged among steps that did nothing, or these would be half of all judgements
MAX_MISSES = 1000  # games in a row without a demonstration, after which we give up
PRIOR_GAMES = 1000  # games that the explorer's placement prior is counted over


class AlfworldDemonstrating(Demonstrating):
    """Episodes of the explorer, judgements and variants by the planner."""

    def __init__(self, prompts: Prompts, games: GameLibrary, max_step: int) -> None:
        self.prompts, self.games, self.max_step = prompts, games, max_step

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        """An endless stream for policy, reward or rewriter. Raises TaskError if MAX_MISSES games in a row give none."""
        games, rng = [self.games.by_source(s) for s in sorted(self.games.load(split))], random.Random(seed)
        prior = make_prior(games[:PRIOR_GAMES])
        demonstrate = {"policy": self._act, "reward": self._judge, "rewriter": self._rewrite}[role]
        misses = 0
        while misses < MAX_MISSES:
            misses += 1
            for conversation in demonstrate(rng.choice(games), prior, rng):
                misses = 0
                yield conversation
        raise TaskError(
            f"no demonstration for the {role} in {MAX_MISSES} tries: {self.max_step} turns an episode are too few for "
            "these games, or their rooms leave no other task; raise max_interaction_step, or choose other games"
        )

    def _act(self, game: Game, prior: Prior, rng: random.Random) -> Iterator[Conversation]:
        """Yield one episode as a conversation, or nothing if the explorer does not finish in time."""
        episode = Episode(game)
        first = Observation(episode.reset(), actions=tuple(episode.admissible))
        explorer = Explorer(game.goal, first.text, prior, rng)
        messages = self.prompts.opening(first)
        trained = [False] * len(messages)
        for _ in range(self.max_step):
            thought, command = explorer.act()
            right = rng.random() >= POLICY_ERRORS
            if not right:
                thought, command = _wrong_action(explorer, rng)
            messages.append(assistant(f"{thought} \\boxed{{{command}}}"))
            trained.append(right)
            feedback, won = episode.step(command)
            if won:
                yield Conversation(messages=messages, trained=trained)
                return
            explorer.observe(command, feedback)
            messages += self.prompts.answer(Observation(feedback, actions=tuple(episode.admissible)))
            trained.append(False)

    def _judge(self, game: Game, prior: Prior, rng: random.Random) -> Iterator[Conversation]:
        """Yield judgements of one episode's steps. Their key is the game, because they share the transcript."""
        episode = Episode(game)
        trajectory = Trajectory(task_id=game.source, index=0, first_observation=episode.reset())
        lapse = rng.uniform(*JUDGE_LAPSES)
        explorer = Explorer(game.goal, trajectory.first_observation, prior, rng, lapse)
        progress = Progress(episode)
        errors = rng.uniform(*JUDGE_ERRORS)
        taken: list[str] = []
        for i in range(self.max_step):
            _, command = explorer.act()
            if rng.random() < errors:
                command = _stray_action(explorer, taken, episode.admissible, rng)
            taken.append(command)
            feedback, won = episode.step(command)
            explorer.observe(command, feedback)
            label, reason = progress.step(command, feedback)
            unsampled = Prompt(ids=[])
            trajectory.turns.append(
                Turn(prompt=unsampled, response_ids=[], logprobs=[], text="", action=command, observation=feedback)
            )
            if feedback == NOTHING_HAPPENS and rng.random() >= JUDGE_NOTHING:
                continue
            yield _answered(self.prompts.judge(trajectory, i), f"{reason} \\boxed{{{label}}}", game.source)
            if won:
                return

    def _rewrite(self, game: Game, prior: Prior, rng: random.Random) -> Iterator[Conversation]:
        """Yield a variant of the task that is harder or easier, or nothing if the room has none."""
        effort = _effort(game, game.goal)
        direction = rng.choice([Direction.HARDER, Direction.EASIER])
        harder = direction is Direction.HARDER
        options = [goal for goal in goals_of(game) if goal != game.goal]
        rng.shuffle(options)
        for goal in options:
            other = _effort(game, goal)
            if other is None or effort is None or not (other > effort if harder else other < effort):
                continue
            accuracy = rng.uniform(0.8, 1) if harder else rng.uniform(0, 0.2)
            messages = self.prompts.rewrite(game, direction, round(accuracy * 8) / 8, "")
            sentence = write_sentence(goal, rng.randrange(len(TEMPLATES[goal.kind])))
            yield _answered(messages, f"\\boxed{{{sentence}}}")
            return


def _wrong_action(explorer: Explorer, rng: random.Random) -> tuple[str, str]:
    """(thought, command) of a mistake that a small policy makes: an absent object, a known place, idling.

    The thought fits the mistake, because a model can only learn to recover from what it sees: "mug: take", and no mug.
    A reward model that has not seen wandering between known places takes it for search, and teaches it to the policy.
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


def _stray_action(explorer: Explorer, taken: Sequence[str], admissible: Sequence[str], rng: random.Random) -> str:
    """A command that an agent under training may give: a mistake as above, one of its own again, any other.

    The reward model may take a kind of step that it has never seen for progress. The policy then soon does little else.
    """
    draw = rng.random()
    if draw < 0.4:
        return _wrong_action(explorer, rng)[1]
    if draw < 0.7 and taken:
        return rng.choice(taken)
    verb = rng.choice(sorted({command.split()[0] for command in admissible} - {"help"}))  # nearly all would be "go"
    return rng.choice([command for command in admissible if command.startswith(verb)])


def _answered(messages: list[Message], answer: str, key: str = "") -> Conversation:
    """A question with its answer, which alone is learned."""
    return Conversation(messages=[*messages, assistant(answer)], trained=[False] * len(messages) + [True], key=key)


def _effort(game: Game, goal: Goal) -> float | None:
    """How hard a goal is if its object must be searched for: steps of the plan, and how hidden and rare the object is.

    None if the goal is met already or cannot be reached.
    """
    commands = plan(Episode(game.with_goal(goal, "")))
    if not commands:
        return None
    holders = {r for o in game.objects if o.type == goal.object_type for r in game.places(o)}
    hidden = sum(r.openable for r in holders) / max(1, len(holders))
    rarity = 1 / max(1, len(holders))
    return len(commands) + 2 * hidden + 2 * rarity + (1 if goal.kind is GoalKind.TWO else 0)

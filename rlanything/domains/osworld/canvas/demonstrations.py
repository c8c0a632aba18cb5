"""Demonstrations on drawn desktops: of acting, of judging steps, of choosing tasks."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rlanything.domains.base import Observation
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld import prompts
from rlanything.domains.osworld.actions import LAST, Action, call_text, spoken
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.desk import Desk, Kind
from rlanything.domains.osworld.canvas.drawing import draw, png
from rlanything.domains.osworld.canvas.goals import Goal, instruction
from rlanything.domains.osworld.canvas.layout import on_top
from rlanything.domains.osworld.canvas.library import UNSEEN_FAMILY, FamilyLibrary
from rlanything.domains.osworld.canvas.solver import GRID, LONGEST, Move, click, distance, solve
from rlanything.domains.osworld.canvas.tasks import Family, Verifier
from rlanything.domains.osworld.rewriting import NUM_EPISODE, choice
from rlanything.domains.parts import Conversation, Demonstrating, remarks, unwritten, vote
from rlanything.types import Group, Message, Prompt, Score, Task, Trajectory, Turn, assistant, user

NUM_SCREEN = 3  # screens with first moves, for each episode
POLICY_ERRORS = 0.15  # share of wrong moves in demonstrations of acting
MIDWAY_MOVES = (0, 0, 1, 1, 2, 2, 3, 4, 5, 6)  # before a screen with first moves: few, because episodes are short
MIDWAY_ERRORS = (0.15, 0.4)  # shares of wrong ones among them
JUDGE_ERRORS = (0.15, 0.75)  # range of that share in episodes to be judged
CRITIC = 0.7  # share of demonstrations of choosing tasks in which a judge has said something
UNSEEN = 0.2  # share of demonstrations on families with words and layouts that no task of the training split has


class CanvasDemonstrating(Demonstrating):
    """Episodes of the scripted solution with wrong moves in between, which are not learned."""

    def __init__(self, style: str, library: FamilyLibrary, images: ImageStore, max_step: int) -> None:
        self.style, self.library, self.images, self.max_step = style, library, images, max_step
        self.tools = prompts.tools(style)

    def conversations(self, role: str, split: str, seed: int) -> Iterator[Conversation]:
        rng = random.Random(f"{role}/{seed}")
        demonstrate = {"policy": self._act, "reward": self._judge, "rewriter": self._rewrite}[role]
        families = [task.payload["family"] for task in self.library.tasks(split)]
        while True:
            unseen = rng.random() < UNSEEN
            yield from demonstrate(f"{UNSEEN_FAMILY}/{rng.getrandbits(40)}" if unseen else rng.choice(families), rng)

    def _act(self, name: str, rng: random.Random) -> Iterator[Conversation]:
        """Yield first moves on some screens, for each of the family's tasks, then one episode as a whole.

        The tasks of a screen share its picture, which costs most of a demonstration.
        """
        family = self.library.family(name)
        for _ in range(NUM_SCREEN):
            desk = midway(rng, family)
            screen = self._screen(desk)
            for verifier in family.verifiers:
                move = solve(verifier.goals, verifier.feasible, desk)
                asked = prompts.opening(instruction(verifier.goals), screen, self.style)
                yield replace(_answered(asked, response(move), screen.images[0]), tools=self.tools)
        yield from self._episode(family, rng)

    def _episode(self, family: Family, rng: random.Random) -> Iterator[Conversation]:
        desk, verifier = family.desk.clone(), rng.choice(family.verifiers)
        messages = prompts.opening(instruction(verifier.goals), self._screen(desk), self.style)
        trained = [False] * len(messages)
        for _ in range(self.max_step):
            right = rng.random() >= POLICY_ERRORS
            move = solve(verifier.goals, verifier.feasible, desk) if right else wrong_move(rng, desk)
            messages.append(assistant(response(move)))
            trained.append(right)
            if move.action.kind == "terminate":
                yield Conversation(messages=messages, trained=trained, tools=self.tools)
                return
            perform(desk, move.action)
            messages.append(user("", self._screen(desk).images))
            trained.append(False)

    def _judge(self, name: str, rng: random.Random) -> Iterator[Conversation]:
        """Yield judgements of one episode's steps: does a step shorten the rest of the solution?

        Wrong moves are of the kinds that small policies make: see `mistake`.
        """
        family, verifier = self.library.family(name), rng.choice(self.library.family(name).verifiers)
        desk, errors = family.desk.clone(), rng.uniform(*JUDGE_ERRORS)
        goals, feasible = verifier.goals, verifier.feasible
        trajectory = Trajectory(task_id=name, index=0, first_images=self._screen(desk).images)
        left = distance(goals, feasible, desk)
        others = [v.goals for v in family.verifiers if v is not verifier and v.feasible]
        last: Move | None = None
        for i in range(self.max_step):
            move = right = solve(goals, feasible, desk)
            if rng.random() < errors:
                move = mistake(rng, desk, right, last, others)
            last = move
            ended = move.action.kind == "terminate"
            if ended:
                good = verifier.solved(desk, move.action.status)
            else:
                perform(desk, move.action)
                before, left = left, distance(goals, feasible, desk)
                good = left < before
            shown = self._screen(desk).images
            trajectory.turns.append(_turn(move, shown))
            asked = prompts.judge(instruction(goals), trajectory, i, self.style)
            yield _answered(asked, vote(1 if good else -1), name)
            if ended or left >= LONGEST:
                return

    def _rewrite(self, name: str, rng: random.Random) -> Iterator[Conversation]:
        """Yield the choice of a harder or an easier verifier, or nothing if there is none."""
        family = self.library.family(name)
        verifiers = self.library.feasible(name)
        ways = {key: distance(v.goals, v.feasible, family.desk) for key, v in verifiers.items()}
        checks = {key: instruction(v.goals) for key, v in verifiers.items()}

        def critic(now: str, solved: int) -> str:
            if rng.random() >= CRITIC:
                return ""
            return remarks(judged_episodes(rng, family, verifiers[now], solved), lambda turn: spoken(turn.text))

        if chosen := choice(checks, ways, rng, self.style, critic):
            yield _answered(*chosen)

    def _screen(self, desk: Desk) -> Observation:
        return Observation("", images=(self.images.put(png(draw(desk))),))


def midway(rng: random.Random, family: Family) -> Desk:
    """A desktop of a family somewhere on the way to one of its tasks. Some of the moves were wrong."""
    desk, verifier, errors = family.desk.clone(), rng.choice(family.verifiers), rng.choice(MIDWAY_ERRORS)
    for _ in range(rng.choice(MIDWAY_MOVES)):
        wrong = rng.random() < errors
        perform(desk, (wrong_move(rng, desk) if wrong else solve(verifier.goals, verifier.feasible, desk)).action)
    return desk


def response(move: Move) -> str:
    """A move as a policy writes it."""
    return f"{move.line}\n{call_text(move.action)}"


def wrong_move(rng: random.Random, desk: Desk) -> Move:
    """A mistake of a small policy: another widget, a click that misses, a stray key. It never ends the episode."""
    shown, drawn = on_top(desk), rng.random()
    if shown and drawn < 0.6:
        return click(rng.choice(shown))
    if shown and drawn < 0.8:
        widget = rng.choice(shown)
        at = (rng.randrange(0, LAST, GRID), rng.randrange(0, LAST, GRID))
        return Move(f"click {widget.name}", Action(kind="left_click", coordinate=at))
    if drawn < 0.9:
        return Move("scroll down", Action(kind="scroll", pixels=-5))
    return Move("press esc", Action(kind="key", keys=("escape",)))


def mistake(rng: random.Random, desk: Desk, right: Move, last: Move | None, others: Sequence[Sequence[Goal]]) -> Move:
    """A wrong move of a kind that small policies make: the right one in a wrong place, the last one again, one that
    pursues another of the family's goals (`others`), an end too early, or any other."""
    drawn = rng.random()
    if drawn < 0.2 and right.action.coordinate:
        x, y = (min(LAST, max(0, at + rng.choice((-4, -3, -2, 2, 3, 4)) * GRID)) for at in right.action.coordinate)
        return Move(right.line, replace(right.action, coordinate=(x, y)))
    if drawn < 0.4 and last and last.action.kind != "terminate":
        return last
    if drawn < 0.65 and others:
        return solve(rng.choice(others), True, desk)
    return any_move(rng, desk)


def any_move(rng: random.Random, desk: Desk) -> Move:
    """A wrong move, or an end of the episode that may be too early."""
    drawn = rng.random()
    if drawn < 0.15:
        status = "success" if drawn < 0.08 else "failure"
        line = "done" if status == "success" else "impossible"
        return Move(line, Action(kind="terminate", status=status))
    fields = [w for w in on_top(desk) if w.kind is Kind.FIELD]
    if fields and drawn < 0.3:
        return Move("type anna", Action(kind="type", text="anna"))
    return wrong_move(rng, desk)


def judged_episodes(rng: random.Random, family: Family, verifier: Verifier, solved: int) -> Group:
    """Made-up beginnings of episodes, of which `solved` were solved, with a judgement of each step."""
    group = Group(task=Task(id="made up", payload={}), trajectories=[])
    for i in range(NUM_EPISODE):
        trajectory = Trajectory(task_id="made up", index=i, score=Score(success=i < solved))
        desk = family.desk.clone()
        for k in range(rng.randint(1, 4)):
            right = rng.random() < (0.8 if i < solved else 0.4)
            move = solve(verifier.goals, verifier.feasible, desk) if right else wrong_move(rng, desk)
            trajectory.turns.append(_turn(move))
            group.judgements.append(unwritten((i, k), 1 if right else -1))
            if move.action.kind == "terminate":
                break
            perform(desk, move.action)
        group.trajectories.append(trajectory)
    return group


def _turn(move: Move, images: tuple[str, ...] = ()) -> Turn:
    said, nothing = response(move), Prompt(ids=[])
    return Turn(prompt=nothing, response_ids=[], logprobs=[], text=said, action="", observation="", images=images)


def _answered(messages: list[Message], answer: str, key: str = "") -> Conversation:
    """A question with its answer, which alone is learned."""
    return Conversation(messages=[*messages, assistant(answer)], trained=[False] * len(messages) + [True], key=key)

"""`rlanything play config=FILE.yaml [split=NAME] [task=ID]`: play a domain by hand, and read what the policy reads."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from rlanything.config.schema import Config
from rlanything.domains.base import Domain, Observation, text_of
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.types import Message, Score, Task

Ask = Callable[[str], str]
Say = Callable[[str], None]
HELP = "An action a turn. ? lists the admissible actions, @FILE takes a file's content as the action, quit gives up."


def play(config: Config, split: str = "", which: str = "", ask: Ask = input, say: Say = print) -> Score:
    """One episode of a task of `split`, and its score. If it is empty, the training split and those of evaluations are
    looked through.

    `which` is a task's id or what it alone begins with, its number in the split, or "random"; empty for the first.
    Raises TaskError if there is no such task.
    """
    splits = [split] if split else [config.dataset.train_split, *config.evaluation.splits]
    with closing(make_domain(config)) as domain:
        task = _find(domain, splits, which)
        say(f"{task.id}: {domain.describe(task)}\n{HELP}")
        if why := domain.refusal(task):
            say(f"Runs leave this task out: {why}")
        return asyncio.run(_play(domain, task, config.rollout.max_interaction_step, ask, say))


def _find(domain: Domain, splits: Sequence[str], which: str) -> Task:
    """The task in the first of the splits that has it. Raises TaskError, which tells of every split."""
    faults = []
    for split in splits:
        try:
            domain.prepare([split])
            return _pick(domain.tasks(split), which, split)
        except TaskError as fault:
            faults.append(str(fault))
    raise TaskError("\n".join(dict.fromkeys(faults)))


def _pick(tasks: list[Task], which: str, split: str) -> Task:
    by_id = {task.id: task for task in tasks}
    if which in by_id:
        return by_id[which]
    if which == "random":
        return random.choice(tasks)
    if not which or (which.isdecimal() and int(which) < len(tasks)):
        return tasks[int(which or 0)]
    if len(begins := [task for task in tasks if task.id.startswith(which)]) == 1:
        return begins[0]
    raise TaskError(
        f"task={which}: split {split} has no such task; expected an id such as {tasks[0].id}, a number from 0 to "
        f"{len(tasks) - 1}, or random"
    )


async def _play(domain: Domain, task: Task, max_turns: int, ask: Ask, say: Say) -> Score:
    env = domain.make_env(task)
    try:
        observation = await env.reset()
        _show(domain.asked(task, observation, ()), say)
        turn = 0
        while turn < max_turns and not observation.done:
            action = _next_action(domain, observation, f"[{turn + 1}/{max_turns}] > ", ask, say)
            if action is None:
                break
            observation = await env.step(action)
            turn += 1
            _show(domain.answer(observation), say)
        score = await env.score(observation)
    finally:
        await env.close()
    reward = "" if score.reward is None else f", reward {score.reward:g}"
    say(f"\n{'Solved' if score.success else 'Not solved'} after {turn} turn{'' if turn == 1 else 's'}{reward}")
    return score


def _next_action(domain: Domain, observation: Observation, prompt: str, ask: Ask, say: Say) -> str | None:
    """The action that the player types; None if the player gives up."""
    while True:
        try:
            text = ask(prompt).strip()
        except EOFError:
            return None
        if text == "quit":
            return None
        if text == "?":
            say("\n".join(observation.actions) or "This domain does not list its actions.")
        elif text.startswith("@"):
            try:
                return Path(text[1:]).expanduser().read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                say(f"{text[1:]} cannot be read: {error}")
        elif text:
            try:
                return domain.typed_action(text, observation)
            except ValueError as error:
                say(str(error))


def _show(messages: list[Message], say: Say) -> None:
    for message in messages:
        if message["role"] != "system":
            shown = [part["image"] for part in message["content"] if isinstance(part, dict) and "image" in part]
            say("\n" + "\n".join([*shown, text_of(message)]).strip("\n") + "\n")

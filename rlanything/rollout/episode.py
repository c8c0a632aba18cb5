"""One episode as a coroutine; a group as k episodes of one task. No episode waits for another.

Each finished turn is handed to `on_turn` (the judge) while the episode goes on. Limits end an episode as
truncated; what the infrastructure breaks is retried, then leaves the group as a counted failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rlanything.config.schema import RolloutConfig
from rlanything.domains.base import Domain, Env, Observation, SandboxFailure, Step
from rlanything.engines.base import PromptTooLong, SamplingParams
from rlanything.engines.chat import ChatModel
from rlanything.errors import ClearError
from rlanything.types import Group, Status, Task, Trajectory, Turn

logger = logging.getLogger(__name__)

OnTurn = Callable[[Task, Trajectory, int], None]


class EnvFailure(Exception):
    """An environment broke an episode."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def ignore_turn(task: Task, trajectory: Trajectory, i: int) -> None:
    """For episodes that nobody judges."""


def request_seed(*parts: object) -> int:
    """A seed that depends on what a request is for, not on when it is made: a resumed run samples the same."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


async def run_group(
    task: Task,
    domain: Domain,
    policy: ChatModel,
    config: RolloutConfig,
    seed: str,
    num: int,
    limit: asyncio.Semaphore,
    on_turn: OnTurn,
    on_end: Callable[[], None],
) -> Group:
    """`num` episodes of one task, at most as many at once as `limit` lets pass."""

    async def one(index: int) -> Trajectory:
        async with limit:
            trajectory = await run_with_retries(
                task, index, domain, policy, config, f"{seed}/{task.id}/{index}", on_turn
            )
        on_end()
        return trajectory

    return Group(task, list(await asyncio.gather(*(one(i) for i in range(num)))))


async def run_with_retries(
    task: Task, index: int, domain: Domain, policy: ChatModel, config: RolloutConfig, seed: str, on_turn: OnTurn
) -> Trajectory:
    """One episode; where the environment breaks it, it is played anew at most `num_retry` times."""
    for attempt in range(config.num_retry + 1):
        trajectory = await run_episode(task, index, domain, policy, config, f"{seed}/{attempt}", on_turn)
        trajectory.retries = attempt
        if trajectory.status not in (Status.ENV_ERROR, Status.ENV_TIMEOUT, Status.SANDBOX_ERROR):
            break
    return trajectory


async def run_episode(
    task: Task, index: int, domain: Domain, policy: ChatModel, config: RolloutConfig, seed: str, on_turn: OnTurn
) -> Trajectory:
    """Play one episode to its end. Environment faults end it as env_error or env_timeout; all others are raised, also
    a ClearError of the environment, such as a task that cannot be played: no retry would mend it."""
    started = time.perf_counter()
    trajectory = Trajectory(task.id, index, "")
    env: Env | None = None
    try:
        async with _environment(config.env_timeout_s):
            env = domain.make_env(task)
            first = await env.reset()
        trajectory.first_observation = first.text
        await _play(task, trajectory, env, first, domain, policy, config, seed, on_turn)
    except EnvFailure as failure:
        trajectory.status, trajectory.error = failure.status, failure.why
    finally:
        if env is not None:
            await _close(env, trajectory, config.env_timeout_s)
    trajectory.seconds = time.perf_counter() - started
    return trajectory


@asynccontextmanager
async def _environment(timeout_s: float) -> AsyncIterator[None]:
    """What is done in it, an environment does: it is third-party code, and whatever it raises is its failure. Raises
    EnvFailure."""
    try:
        async with asyncio.timeout(timeout_s):  # wait_for of Python 3.11 can swallow a cancellation
            yield
    except TimeoutError:
        why = f"no answer from the environment within rollout.env_timeout_s={timeout_s} s"
        raise EnvFailure(Status.ENV_TIMEOUT, why) from None
    except SandboxFailure as error:
        raise EnvFailure(Status.SANDBOX_ERROR, str(error)) from error
    except ClearError:
        raise
    except Exception as error:
        raise EnvFailure(Status.ENV_ERROR, f"{type(error).__name__}: {error}") from error


async def _close(env: Env, trajectory: Trajectory, timeout_s: float) -> None:
    """The episode is over: an environment that cannot end is told of, and changes nothing."""
    try:
        async with asyncio.timeout(timeout_s):
            await env.close()
    except Exception as error:  # third-party code
        logger.warning("an environment of task %s could not be closed: %r", trajectory.task_id, error)


async def _play(
    task: Task,
    trajectory: Trajectory,
    env: Env,
    first: Observation,
    domain: Domain,
    policy: ChatModel,
    config: RolloutConfig,
    seed: str,
    on_turn: OnTurn,
) -> None:
    chat, engine = policy.chat, policy.engine
    steps: list[Step] = []
    observation = first
    trajectory.status = Status.TRUNCATED
    for i in range(config.max_interaction_step):
        message = domain.user_message(task, first, steps, config.history)
        if steps and config.history == "append_only":
            last = trajectory.turns[-1]
            prompt = [*last.prompt_ids, *last.response_ids, *chat.follow_up([message]).ids]
        else:
            system = domain.system_message()
            prompt = chat.prompt([system, message] if system else [message]).ids
        sampling = SamplingParams(
            config.temperature,
            config.max_response_tokens,
            config.top_p,
            config.top_k,
            chat.stop_ids,
            request_seed(seed, i),
            session=seed,
        )
        asked = time.perf_counter()
        try:
            [completion] = await engine.generate(prompt, sampling)
        except PromptTooLong as error:
            if not steps:
                trajectory.status, trajectory.error = Status.CONTEXT_ERROR, f"the first prompt: {error}"
            return
        generate_s = time.perf_counter() - asked
        text = chat.decode(completion.token_ids)
        parsed = domain.parse_action(text, observation)
        asked = time.perf_counter()
        async with _environment(config.env_timeout_s):
            observation = await env.step(parsed.action)
        turn = Turn(
            prompt,
            completion.token_ids,
            completion.logprobs,
            text,
            parsed.action,
            observation.text,
            completion.stop_reason,
            parsed.error,
            observation.invalid,
            observation.label,
            observation.images,
            engine.version,
            generate_s,
            time.perf_counter() - asked,
            observation.results,
        )
        trajectory.turns.append(turn)
        steps.append(Step(text, parsed.action, observation))
        on_turn(task, trajectory, i)
        if observation.done:
            trajectory.outcome = 1 if observation.success else -1
            trajectory.status = Status.COMPLETED
            return
        if completion.stop_reason == "length":  # it did not get to its end: what follows would be no conversation
            return

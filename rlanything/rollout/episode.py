"""One episode as a coroutine; a group as k episodes of one task. No episode waits for another.

Each finished turn is handed to the judge while the episode goes on. Limits end an episode as truncated. If the
infrastructure breaks an episode, it is played anew; in the end it leaves the group as a counted failure.
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
from rlanything.engines.base import PromptTooLong, SamplingParams, request_seed
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import ClearError
from rlanything.rollout.history import History
from rlanything.rollout.judging import Judge
from rlanything.types import Ending, Group, Status, Task, Trajectory, Turn

logger = logging.getLogger(__name__)
RETRIED = (Status.ENV_ERROR, Status.ENV_TIMEOUT, Status.SANDBOX_ERROR)


class EnvFailure(Exception):
    """An environment broke an episode."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Player:
    """Plays episodes of a domain with a policy. `seed` names the draw."""

    def __init__(self, domain: Domain, policy: ChatModel, config: RolloutConfig, seed: str, judge: Judge) -> None:
        self.domain, self.policy, self.config, self.seed, self.judge = domain, policy, config, seed, judge
        self._limit = asyncio.Semaphore(config.max_concurrent)

    async def group(self, task: Task, num: int, on_end: Callable[[], None]) -> Group:
        """`num` episodes of one task; `on_end` is called after each."""

        async def one(index: int) -> Trajectory:
            async with self._limit:
                trajectory = await self._with_retries(task, index)
            on_end()
            return trajectory

        return Group(task=task, trajectories=list(await asyncio.gather(*(one(i) for i in range(num)))))

    async def _with_retries(self, task: Task, index: int) -> Trajectory:
        for attempt in range(self.config.num_retry + 1):
            trajectory = await self.episode(task, index, attempt)
            trajectory.retries = attempt
            if trajectory.status not in RETRIED:
                break
        return trajectory

    async def episode(self, task: Task, index: int, attempt: int = 0) -> Trajectory:
        """Play one episode to its end.

        An environment's fault ends it as env_error, env_timeout or sandbox_error. Every other fault is raised, and so
        is a ClearError of the environment, such as a task that cannot be played: no retry would mend it.
        """
        started = time.perf_counter()
        trajectory = Trajectory(task_id=task.id, index=index)
        env: Env | None = None
        try:
            async with self._environment():
                env = self.domain.make_env(task)
                first = await env.reset()
            trajectory.first_observation = first.text
            last = await self._play(task, trajectory, env, first, f"{self.seed}/{task.id}/{index}/{attempt}")
            if not trajectory.status.is_failure:
                async with self._environment():
                    trajectory.score = await env.score(last)
        except EnvFailure as failure:
            trajectory.status, trajectory.error, trajectory.ending = failure.status, failure.why, Ending.BROKEN
        finally:
            if env is not None:
                await self._close(env, task)
        trajectory.seconds = time.perf_counter() - started
        return trajectory

    async def _play(self, task: Task, trajectory: Trajectory, env: Env, first: Observation, seed: str) -> Observation:
        """Take turns until one of the endings; returns the last observation."""
        chat, engine, domain, config = self.policy.chat, self.policy.engine, self.domain, self.config
        history, steps, observation = History(chat, domain, task, first, config.history), list[Step](), first
        trajectory.status, trajectory.ending = Status.TRUNCATED, Ending.TURNS
        for i in range(config.max_interaction_step):
            prompt = history.prompt(trajectory.turns, steps)
            sampling = SamplingParams(
                temperature=config.temperature,
                max_tokens=config.max_response_tokens,
                top_p=config.top_p,
                top_k=config.top_k,
                stop_token_ids=chat.stop_ids,
                seed=request_seed(seed, i),
                session=seed,
            )
            asked = time.perf_counter()
            try:
                [completion] = await engine.generate(prompt.ids, sampling)
            except PromptTooLong as error:
                trajectory.ending = Ending.CONTEXT
                if not steps:
                    trajectory.status, trajectory.error = Status.CONTEXT_ERROR, f"the first prompt: {error}"
                return observation
            answered = time.perf_counter()
            text = chat.decode(completion.token_ids)
            parsed, state = domain.parse_action(text, observation), state_of(observation)
            async with self._environment():
                observation = await env.step(parsed.action)
            turn = Turn(
                prompt=prompt,
                response_ids=completion.token_ids,
                logprobs=completion.logprobs,
                text=text,
                action=parsed.action,
                observation=observation.text,
                stop_reason=completion.stop_reason,
                parse_error=parsed.error,
                invalid=observation.invalid,
                label=observation.label,
                results=observation.results,
                images=observation.images,
                state=state,
                policy_version=engine.version,
                generate_s=answered - asked,
                env_s=time.perf_counter() - answered,
            )
            trajectory.turns.append(turn)
            steps.append(Step(response=text, action=parsed.action, observation=observation))
            self.judge.on_turn(task, trajectory, i)
            if observation.done:
                trajectory.status, trajectory.ending = Status.COMPLETED, Ending.DONE
                return observation
            if completion.stop_reason == "length":  # what follows an unfinished response would be no conversation
                trajectory.ending = Ending.LENGTH
                return observation
        return observation

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[None]:
        """Guards calls into an environment, which is third-party code: everything it raises is its failure.

        Raises EnvFailure.
        """
        limit_s = self.config.env_timeout_s
        try:
            async with asyncio.timeout(limit_s):  # wait_for of Python 3.11 can swallow a cancellation
                yield
        except TimeoutError:
            why = f"no answer from the environment within rollout.env_timeout_s={limit_s} s"
            raise EnvFailure(Status.ENV_TIMEOUT, why) from None
        except SandboxFailure as error:
            raise EnvFailure(Status.SANDBOX_ERROR, str(error)) from error
        except ClearError:
            raise
        except Exception as error:
            raise EnvFailure(Status.ENV_ERROR, f"{type(error).__name__}: {error}") from error

    async def _close(self, env: Env, task: Task) -> None:
        """The episode is over, so an environment that cannot be closed is only logged."""
        try:
            async with asyncio.timeout(self.config.env_timeout_s):
                await env.close()
        except Exception as error:  # third-party code
            logger.warning("an environment of task %s could not be closed: %r", task.id, error)


def state_of(observation: Observation) -> str:
    """Digest (hex) of the state that an observation names, or of its text if it names none."""
    named = observation.state or observation.text
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

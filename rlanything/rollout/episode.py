"""One episode as a coroutine; a group as k episodes of one task. No episode waits for another.

The judge gets each finished turn while the episode goes on. Limits end an episode as truncated. An episode that the
infrastructure breaks is played anew; if that fails too, it leaves the group as a counted failure.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from rlanything.algorithm.branches import WAVES, Start, choose
from rlanything.config.schema import RolloutConfig
from rlanything.domains.base import Domain, Env, Observation, SandboxFailure, Step
from rlanything.engines.base import Completion, PromptTooLong, SamplingParams, request_seed, require_finite
from rlanything.engines.chat_model import ChatModel
from rlanything.errors import ClearError
from rlanything.rollout.history import History
from rlanything.rollout.judging import Judge
from rlanything.types import Ending, Group, Prompt, Status, Task, Trajectory, Turn

logger = logging.getLogger(__name__)
RETRIED = (Status.ENV_ERROR, Status.ENV_TIMEOUT, Status.SANDBOX_ERROR)


class EnvFailure(Exception):
    """An environment broke an episode, which ends with this status."""

    def __init__(self, status: Status, why: str) -> None:
        super().__init__(why)
        self.status = status


class Player:
    """Plays episodes of a domain with a policy. Equal `seed`s sample alike."""

    def __init__(self, domain: Domain, policy: ChatModel, config: RolloutConfig, seed: str, judge: Judge) -> None:
        self.domain, self.policy, self.config, self.seed, self.judge = domain, policy, config, seed, judge
        self._limit = domain.limit(config.max_concurrent)

    async def group(self, task: Task, num: int, on_end: Callable[[], None]) -> Group:
        """Play `num` episodes of one task; `on_end` is called after each.

        The last `rollout.num_branch` of them go on from states of earlier ones, which the judge's scores choose.
        """
        branches = self.config.num_branch
        group = await self.episodes(task, [None] * (num - branches), on_end)
        while left := num - len(group.trajectories):
            signals, played = await self.judge.signals(group), len(group.trajectories)
            starts = choose(group, signals, min(left, math.ceil(branches / WAVES)), f"{self.seed}/{task.id}/{played}")
            group.trajectories += (await self.episodes(task, starts, on_end, played)).trajectories
        group.figures = self.domain.figures()
        return group

    async def episodes(
        self, task: Task, starts: Sequence[Start | None], on_end: Callable[[], None], first: int = 0
    ) -> Group:
        """Play an episode from each start, or from the task's beginning; `first` is the number of the first one."""

        async def one(index: int, start: Start | None) -> Trajectory:
            async with self._limit:
                for attempt in range(self.config.num_retry + 1):
                    trajectory = await self.episode(task, index, attempt, start)
                    trajectory.retries = attempt
                    if trajectory.status not in RETRIED:
                        break
            on_end()
            return trajectory

        trajectories = list(await asyncio.gather(*(one(first + i, start) for i, start in enumerate(starts))))
        return Group(task=task, trajectories=trajectories, figures=self.domain.figures())

    async def episode(self, task: Task, index: int, attempt: int = 0, start: Start | None = None) -> Trajectory:
        """Play one episode to its end.

        It repeats the turns that led to `start`. If the environment answers one in another way, that turn is the
        episode's own, and the policy goes on from there.

        An environment's fault ends it as env_error, env_timeout or sandbox_error. Every other fault is raised. So is a
        ClearError of the environment, such as a task that cannot be played, because no retry would mend it.
        """
        started = time.perf_counter()
        trajectory = Trajectory(task_id=task.id, index=index)
        phases = trajectory.phases
        env: Env | None = None
        try:
            async with self._environment():
                env = self.domain.make_env(task)
                first = await env.reset()
            phases["reset"] = time.perf_counter() - started
            trajectory.first_observation, trajectory.first_images = first.text, first.images
            last = await self._play(task, trajectory, env, first, f"{self.seed}/{task.id}/{index}/{attempt}", start)
            if not trajectory.status.is_failure:
                ended = time.perf_counter()
                async with self._environment():
                    trajectory.score = await env.score(last)
                phases["evaluate"] = time.perf_counter() - ended
        except EnvFailure as failure:
            trajectory.status, trajectory.error, trajectory.ending = failure.status, str(failure), Ending.BROKEN
        finally:
            if env is not None:
                await self._close(env, task)
        if start and trajectory.begun:
            trajectory.origin = start.origin.index
        trajectory.seconds = time.perf_counter() - started
        return trajectory

    async def _play(
        self, task: Task, trajectory: Trajectory, env: Env, first: Observation, seed: str, start: Start | None
    ) -> Observation:
        """Take turns until one of the endings; returns the last observation."""
        chat, engine, domain, config = self.policy.chat, self.policy.engine, self.domain, self.config
        history, steps, observation = History(chat, domain, task, first, config.history), list[Step](), first
        trajectory.status, trajectory.ending = Status.TRUNCATED, Ending.TURNS
        for i in range(config.max_interaction_step):
            prompt = history.prompt(trajectory.turns, steps)
            left = config.max_response_tokens
            if config.max_episode_tokens:
                first_prompt = trajectory.turns[0].prompt if trajectory.turns else prompt
                left = min(left, config.max_episode_tokens - (len(prompt.ids) - len(first_prompt.ids)))
            if left <= 0:
                trajectory.ending = Ending.LENGTH
                return observation
            sampling = SamplingParams(
                temperature=config.temperature,
                max_tokens=left,
                top_p=config.top_p,
                top_k=config.top_k,
                stop_token_ids=chat.stop_ids,
                seed=request_seed(seed, i),
                session=seed,
            )
            asked = time.perf_counter()
            try:
                completion = await self._respond(prompt, sampling, trajectory, start)
            except PromptTooLong as error:
                trajectory.ending = Ending.CONTEXT
                if not steps:
                    trajectory.status, trajectory.error = Status.CONTEXT_ERROR, f"the first prompt: {error}"
                return observation
            answered = time.perf_counter()
            text = chat.response_text(completion.token_ids)
            parsed, state = domain.parse_action(text, observation), state_of(observation)
            admissible = observation.actions if domain.judging and domain.judging.written else ()
            async with self._environment():
                observation = await env.step(parsed.action)
            turn = Turn(
                prompt=prompt,
                response_ids=completion.token_ids,
                logprobs=completion.logprobs,
                text=text,
                action=parsed.action,
                actions=admissible,
                observation=observation.text,
                stop_reason=completion.stop_reason,
                parse_error=parsed.error,
                kind=parsed.kind,
                invalid=observation.invalid,
                label=observation.label,
                reason=observation.reason,
                results=observation.results,
                images=observation.images,
                point=parsed.point,
                state=state,
                policy_version=engine.version,
                generate_s=answered - asked,
                env_s=time.perf_counter() - answered,
            )
            trajectory.turns.append(turn)
            for phase, seconds in {"model": turn.generate_s, **observation.seconds}.items():
                trajectory.phases[phase] = trajectory.phases.get(phase, 0.0) + seconds
            steps.append(Step(response=text, action=parsed.action, observation=observation))
            if start and i < trajectory.begun and not same_answer(turn, start.turns[i]):
                trajectory.begun = i
            if i >= trajectory.begun:
                self.judge.on_turn(task, trajectory, i)
            # A cut response cannot be followed by an answer, unless the next prompt is rendered anew.
            cut = completion.stop_reason == "length" and config.history == "append_only"
            if cut:
                trajectory.ending = Ending.LENGTH
                return observation
            if observation.done:
                trajectory.status, trajectory.ending = Status.COMPLETED, Ending.DONE
                return observation
        return observation

    async def _respond(
        self, prompt: Prompt, sampling: SamplingParams, trajectory: Trajectory, start: Start | None
    ) -> Completion:
        """The policy's response, or on the way to `start` the one that was recorded. Raises PromptTooLong."""
        i = len(trajectory.turns)
        if start and trajectory.begun == i < start.num_turn and prompt == start.turns[i].prompt:
            turn = start.turns[i]
            trajectory.begun = i + 1
            return Completion(token_ids=turn.response_ids, logprobs=turn.logprobs, stop_reason=turn.stop_reason)
        [completion] = await self.policy.engine.generate(prompt.ids, sampling, images=prompt.images)
        require_finite([completion])
        return completion

    @asynccontextmanager
    async def _environment(self) -> AsyncIterator[None]:
        """Turn everything that an environment raises into an EnvFailure, because it is third-party code."""
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
        """Close an environment. A fault is only logged, because the episode is over."""
        try:
            async with asyncio.timeout(self.config.env_timeout_s):
                await env.close()
        except Exception as error:  # third-party code
            logger.warning("an environment of task %s could not be closed: %r", task.id, error)


def same_answer(turn: Turn, recorded: Turn) -> bool:
    """Did the environment answer as it did before?"""
    answers = [(t.observation, t.images, t.invalid, t.label) for t in (turn, recorded)]
    return answers[0] == answers[1]


def state_of(observation: Observation) -> str:
    """Digest (hex) of the state that an observation names, or of its text if it names none."""
    named = observation.state or observation.text
    return hashlib.blake2b(named.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

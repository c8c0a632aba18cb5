"""The reward model at work: m evaluations of every finished turn, while other episodes still act."""

from __future__ import annotations

import asyncio

from rlanything.config.schema import RewardConfig
from rlanything.domains.base import JudgedDomain
from rlanything.engines.base import PromptTooLong, SamplingParams
from rlanything.engines.chat import ChatModel
from rlanything.rollout.episode import request_seed
from rlanything.types import Evaluation, Group, Status, Task, Trajectory

MAX_REMARKS = 3  # remarks of each kind in a critic summary: the commonest say enough


class Judge:
    """Evaluates turns as they finish. `finish` waits for all that were handed in.

    An episode with a turn that does not fit the reward model's context is a failure where judging is `required`; else
    such turns stay without an evaluation.
    """

    def __init__(
        self, model: ChatModel, domain: JudgedDomain, config: RewardConfig, seed: str, required: bool = True
    ) -> None:
        self.model, self.domain, self.config, self.seed, self.required = model, domain, config, seed, required
        self._pending: set[asyncio.Task[None]] = set()
        self._unjudged: list[tuple[Trajectory, str]] = []

    def on_turn(self, task: Task, trajectory: Trajectory, i: int) -> None:
        """Start the evaluations of turn i; returns at once."""
        if self.config.num_evaluation:
            pending = asyncio.get_running_loop().create_task(self._evaluate(task, trajectory, i))
            self._pending.add(pending)

    async def finish(self) -> None:
        """Wait for every evaluation; an engine fault is raised here."""
        try:
            while self._pending:
                done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    self._pending.discard(task)
                    task.result()
        finally:
            for task in self._pending:
                task.cancel()
        # Only now: an episode that was still under way would have overwritten it when it ended.
        for trajectory, error in self._unjudged if self.required else ():
            trajectory.status, trajectory.error = Status.JUDGE_ERROR, error

    async def _evaluate(self, task: Task, trajectory: Trajectory, i: int) -> None:
        chat, config = self.model.chat, self.config
        messages = self.domain.judge_messages(task, trajectory, i)
        session = f"{self.seed}/{task.id}/{trajectory.index}"
        sampling = SamplingParams(
            config.temperature,
            config.max_response_tokens,
            stop_token_ids=chat.stop_ids,
            seed=request_seed(session, i, "judge"),
            session=session,
        )
        try:
            prompt, completions = await self.model.ask(messages, sampling, config.num_evaluation)
        except PromptTooLong as error:
            self._unjudged.append((trajectory, str(error)))
            return
        for completion in completions:
            text = chat.decode(completion.token_ids)
            score, problem = self.domain.parse_score(text)
            trajectory.turns[i].evaluations.append(
                Evaluation(prompt, completion.token_ids, completion.logprobs, text, score, problem)
            )


def critic_summary(group: Group) -> str:
    """What the reward model said of this task's steps, for the rewriter: the commonest remarks r_ij on steps
    judged good and bad, in solved and in failed episodes, with the actions that they were made of."""
    lines = []
    for solved in (True, False):
        trajectories = [t for t in group.valid if t.success is solved]
        if not trajectories:
            continue
        lines.append(f"{len(trajectories)} {'solved' if solved else 'failed'} episodes:")
        for score, word in ((1, "good"), (-1, "bad")):
            counts: dict[str, int] = {}
            for trajectory in trajectories:
                for turn in trajectory.turns:
                    for e in turn.evaluations:
                        if e.score == score:
                            said = f"{turn.action or 'no action'}: {' '.join(e.text.split())}"
                            counts[said] = counts.get(said, 0) + 1
            common = sorted(counts, key=lambda s: (-counts[s], s))[:MAX_REMARKS]
            lines += [f"- {word} x{counts[said]}: {said}" for said in common]
    return "\n".join(lines)

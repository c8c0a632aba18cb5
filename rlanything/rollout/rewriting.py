"""Proposals for tasks outside the accuracy band: the rewriter writes, the domain validates and proves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rlanything.algorithm.tasks import TaskPool, Wish
from rlanything.config.schema import AdaptationConfig
from rlanything.domains.base import Domain, ProgramDomain, RejectedTask
from rlanything.engines.base import PromptTooLong, SamplingParams
from rlanything.engines.chat import ChatModel
from rlanything.rollout.episode import request_seed
from rlanything.rollout.judging import critic_summary
from rlanything.types import Group


async def rewrite(
    wishes: Sequence[Wish],
    groups: Sequence[Group],
    pool: TaskPool,
    rewriter: ChatModel,
    domain: Domain,
    config: AdaptationConfig,
    seed: str,
    step: int,
) -> Counter[str]:
    """Ask for up to `num_try` proposals a task and add the first valid one to the pool as a candidate.

    Returns how many proposals were made and, by reason, rejected (`proposed`, `rejected_<reason>`).
    """
    by_id = {g.task.id: g for g in groups}
    known = {domain.identity(task) for task in pool.tasks()}
    counts: Counter[str] = Counter()
    answers = await asyncio.gather(
        *(_propose(w, by_id[w.task.id], rewriter, domain, config, f"{seed}/{step}") for w in wishes)
    )
    for wish, texts in zip(wishes, answers, strict=True):
        reasons: Counter[str] = Counter() if texts else Counter(prompt_too_long=1)
        task_id = pool.next_id(wish.task)
        for text in texts:
            try:
                task = replace(domain.parse_task(text, wish.task, wish.direction, task_id), born_step=step)
            except RejectedTask as rejected:
                reasons[rejected.reason] += 1
                continue
            if domain.identity(task) in known:
                domain.settle_task(task, accepted=False)
                reasons["duplicate"] += 1
                continue
            known.add(domain.identity(task))
            pool.propose(task, wish.accuracy, step, domain.describe(task))
            counts["proposed"] += 1
            break
        else:
            pool.reject(wish, step, dict(reasons))
        counts.update({f"rejected_{reason}": n for reason, n in reasons.items()})
    return counts


async def _propose(
    wish: Wish, group: Group, rewriter: ChatModel, domain: Domain, config: AdaptationConfig, seed: str
) -> list[str]:
    """The rewriter's answers; none where the prompt does not fit its context."""
    chat = rewriter.chat
    critic = domain.critic(group) if isinstance(domain, ProgramDomain) else critic_summary(group)
    messages = domain.rewrite_messages(wish.task, wish.direction, wish.accuracy, critic)
    sampling = SamplingParams(
        config.temperature,
        config.max_response_tokens,
        stop_token_ids=chat.stop_ids,
        seed=request_seed(seed, wish.task.id, "rewrite"),
    )
    try:
        _, completions = await rewriter.ask(messages, sampling, config.num_try)
    except PromptTooLong:
        return []
    return [chat.decode(c.token_ids) for c in completions]

"""Variants of tasks outside the accuracy band: the rewriter proposes them and the domain validates them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rlanything.algorithm.tasks import RewriteRequest, TaskPool
from rlanything.config.schema import AdaptationConfig
from rlanything.domains.base import Domain
from rlanything.domains.parts import RejectedTask, Rewriting
from rlanything.engines.base import PromptTooLong, request_seed
from rlanything.engines.chat_model import ChatModel


async def rewrite(
    requests: Sequence[RewriteRequest],
    pool: TaskPool,
    rewriter: ChatModel,
    domain: Domain,
    config: AdaptationConfig,
    seed: str,
    step: int,
) -> Counter[str]:
    """Ask for `num_try` proposals a task, and add the first valid one to the pool as a candidate.

    Returns how many proposals were made and, by reason, rejected (`proposed`, `rejected_<reason>`).
    """
    rewriting = domain.rewriting
    if rewriting is None:
        return Counter()
    known = {domain.identity(task) for task in pool.tasks()}
    counts: Counter[str] = Counter()
    answers = await asyncio.gather(*(_propose(r, rewriter, rewriting, config, f"{seed}/{step}") for r in requests))
    for request, texts in zip(requests, answers, strict=True):
        reasons: Counter[str] = Counter() if texts else Counter(prompt_too_long=1)
        task_id = pool.next_id(request.task)
        for text in texts:
            try:
                task = replace(rewriting.parse(text, request.task, request.direction, task_id), born_step=step)
            except RejectedTask as rejected:
                reasons[rejected.reason] += 1
                continue
            if domain.identity(task) in known:
                reasons["duplicate"] += 1
                continue
            known.add(domain.identity(task))
            rewriting.open(task)
            pool.propose(task, request.group.accuracy, step, domain.describe(task))
            counts["proposed"] += 1
            break
        else:
            pool.reject(request, step, dict(reasons))
        counts.update({f"rejected_{reason}": n for reason, n in reasons.items()})
    return counts


async def _propose(
    request: RewriteRequest, rewriter: ChatModel, rewriting: Rewriting, config: AdaptationConfig, seed: str
) -> list[str]:
    """The rewriter's answers; none if the prompt does not fit its context."""
    group = request.group
    try:
        _, replies = await rewriter.ask(
            rewriting.messages(group.task, request.direction, group.accuracy, rewriting.critic(group)),
            num=config.num_try,
            temperature=config.temperature,
            max_tokens=config.max_response_tokens,
            seed=request_seed(seed, group.task.id, "rewrite"),
        )
    except PromptTooLong:
        return []
    return [reply.text for reply in replies]

"""Variants of tasks outside the accuracy band: the rewriter proposes them and the domain validates them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlanything.algorithm.tasks import RewriteRequest, TaskPool
from rlanything.config.schema import AdaptationConfig
from rlanything.domains.base import Domain
from rlanything.domains.parts import RejectedTask, Rewriting
from rlanything.engines.base import PromptTooLong, request_seed
from rlanything.engines.chat_model import ChatModel
from rlanything.types import Task


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
    texts = await asyncio.gather(*(_propose(r, rewriter, rewriting, config, f"{seed}/{step}") for r in requests))
    proposals = [
        _Proposal(request=request, task_id=pool.next_id(request.task), texts=answers, reasons=Counter())
        for request, answers in zip(requests, texts, strict=True)
    ]
    for number in range(config.num_try):
        open_ = [p for p in proposals if p.task is None and number < len(p.texts)]
        tried = await asyncio.gather(*(_try(p, number, rewriting) for p in open_))
        for proposal, found in zip(open_, tried, strict=True):
            if isinstance(found, RejectedTask):
                proposal.reasons[found.reason] += 1
            elif domain.identity(found) in known:
                proposal.reasons["duplicate"] += 1
            else:
                known.add(domain.identity(found))
                proposal.task = replace(found, born_step=step)
    counts: Counter[str] = Counter()
    for proposal in proposals:
        if not proposal.texts:
            proposal.reasons["prompt_too_long"] += 1
        counts.update({f"rejected_{reason}": n for reason, n in proposal.reasons.items()})
        if proposal.task is None:
            pool.reject(proposal.request, step, dict(proposal.reasons))
        else:
            rewriting.open(proposal.task)
            pool.propose(proposal.task, proposal.request.group.accuracy, step, domain.describe(proposal.task))
            counts["proposed"] += 1
    return counts


@dataclass(kw_only=True)
class _Proposal:
    """The rewriter's answers to one request."""

    request: RewriteRequest
    task_id: str
    texts: list[str]
    """Its answers; none if the prompt did not fit its context."""
    reasons: Counter[str]
    """Why answers were rejected."""
    task: Task | None = None
    """The first valid one."""


async def _try(proposal: _Proposal, number: int, rewriting: Rewriting) -> Task | RejectedTask:
    request = proposal.request
    try:
        parsed = rewriting.parse(proposal.texts[number], request.task, request.direction, proposal.task_id)
        return await rewriting.prove(parsed)
    except RejectedTask as rejected:
        return rejected


async def _propose(
    request: RewriteRequest, rewriter: ChatModel, rewriting: Rewriting, config: AdaptationConfig, seed: str
) -> list[str]:
    """The rewriter's answers; none if the prompt does not fit its context."""
    group = request.group
    try:
        _, replies = await rewriter.ask(
            rewriting.asked(group.task, request.direction, group.accuracy, group.critic),
            num=config.num_try,
            temperature=config.temperature,
            max_tokens=config.max_response_tokens,
            seed=request_seed(seed, group.task.id, "rewrite"),
        )
    except PromptTooLong:
        return []
    return [reply.text for reply in replies]

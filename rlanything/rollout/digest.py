"""A group becomes feedback, samples for the learners and a summary when its episodes are over and judged.

This happens where the episodes were played. The loop gets no episode.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlanything.algorithm.advantages import assign_advantages, within
from rlanything.algorithm.consistency import assign_consistency
from rlanything.algorithm.diagnostics import tally, tally_feedback
from rlanything.algorithm.samples import num_level, policy_samples, reward_samples, sample_sets
from rlanything.algorithm.summary import GroupSummary, summary
from rlanything.config.roles import learner_roles
from rlanything.config.schema import Config
from rlanything.config.section import Learner
from rlanything.domains.base import Domain
from rlanything.types import Group, Sample, SampleSet

SAMPLES: dict[Learner, Callable[[Sequence[Group], Sequence[float], str], list[Sample]]] = {
    "policy": policy_samples,
    "reward": reward_samples,
}
LEVEL = "turns_at_baseline"  # in the tally: turns of advantage 0 that the policy's update leaves out


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A group's summary, and what each learner trains on."""

    summary: GroupSummary
    sets: dict[Learner, list[SampleSet]]


def band(config: Config, role: Learner) -> Sequence[float]:
    """The accuracies of the groups that a learner trains on."""
    return {"policy": config.algorithm.band, "reward": config.reward.band}[role]


def training_sets(group: Group, config: Config, role: Learner) -> list[SampleSet]:
    """Make the sets that a learner trains on, of a group that has its feedback; none if it is outside the learner's
    band."""
    return sample_sets(SAMPLES[role]([group], band(config, role), config.training.of(role).loss_mean))


def digest(group: Group, domain: Domain, config: Config, trains: bool) -> Digest:
    """Digest a judged group. If it `trains`, this fills the feedback of its turns and judgements.

    A group with fewer than `rollout.min_group` valid episodes, or outside a learner's band, gives that learner nothing.
    """
    sets: dict[Learner, list[SampleSet]] = {role: [] for role in SAMPLES}
    if not trains:
        return Digest(summary=summary(group, tally(group, domain.same_answer)), sets=sets)
    assign_advantages([group], config.algorithm)
    assign_consistency([group], config.reward)
    counted, critic = tally(group, domain.same_answer), ""
    if len(group.whole) >= config.rollout.min_group:
        in_band = (config.adaptation.alpha_low, config.adaptation.alpha_high)
        if config.adaptation.enabled and domain.rewriting and not within(group.accuracy, in_band):
            critic = domain.rewriting.critic(group)
        sets |= {role: training_sets(group, config, role) for role in learner_roles(config)}
        if sets["reward"]:
            tally_feedback(group, counted)
        counted.sums[LEVEL] += num_level([group], band(config, "policy"))
    return Digest(summary=summary(group, counted, critic), sets=sets)

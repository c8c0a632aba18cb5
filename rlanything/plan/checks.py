"""Check that the domain and the algorithm can do what a training's configuration asks, before models are loaded."""

from rlanything.algorithm.advantages import advantage_rule
from rlanything.config.schema import Config
from rlanything.domains.base import Domain
from rlanything.errors import ConfigError


def check_domain(config: Config, domain: Domain) -> None:
    """Raise ConfigError naming a key that the domain's parts cannot serve, or an advantage rule that cannot be used."""
    advantage_rule(config.algorithm)
    reward, name = config.reward, config.dataset.domain
    if reward.num_evaluation and reward.judge == "model":
        if domain.judging is None:
            raise ConfigError(
                f"reward.num_evaluation={reward.num_evaluation}: dataset.domain={name} has no judging; expected 0, "
                "with algorithm.step_weight=0"
            )
        tests = domain.judging.covers == "task"
        if reward.consistency == "tests" and not tests:
            raise ConfigError(
                f"reward.consistency=tests: with dataset.domain={name} the reward model judges turns and writes no "
                "tests; expected feedback or relative"
            )
        if reward.trained and reward.num_evaluation == 1 and (tests or reward.group == "step"):
            raise ConfigError(
                "reward.num_evaluation=1: a judgement is then its own baseline and never trains; use at least 2"
                + ("" if tests else ", or reward.group=index or task")
            )
    if config.adaptation.enabled and domain.rewriting is None:
        raise ConfigError(
            f"adaptation.enabled=true: dataset.domain={name} cannot rewrite tasks; set adaptation.enabled=false"
        )

"""Keys that a domain's parts cannot serve are named before models are loaded."""

import pytest
from builders import config_of

from rlanything.domains.registry import make_domain
from rlanything.errors import ConfigError
from rlanything.plan.checks import check_domain


def checked(world, domain="alfworld", part=None, **keys):
    config = config_of(domain, world.games)
    for key, value in keys.items():
        section, name = key.split("__")
        setattr(getattr(config, section), name, value)
    made = make_domain(config)
    if part:
        setattr(made, part, None)
    check_domain(config, made)


def test_the_defaults_fit_every_shipped_domain(world):
    checked(world)
    checked(world, "coding")


@pytest.mark.parametrize(
    ("domain", "part", "keys", "message"),
    [
        ("alfworld", None, {"reward__consistency": "tests"}, "reward.consistency=tests: with dataset.domain=alfworld"),
        ("alfworld", None, {"reward__num_evaluation": 1}, "num_evaluation=1: .*2, or reward.group=index or task"),
        ("coding", None, {"reward__num_evaluation": 1, "reward__group": "task"}, "its own baseline .*use at least 2$"),
        ("alfworld", "judging", {}, "reward.num_evaluation=3: dataset.domain=alfworld has no judging; expected 0"),
        ("alfworld", "rewriting", {}, "adaptation.enabled=true: dataset.domain=alfworld cannot rewrite tasks"),
        ("alfworld", None, {"algorithm__advantage": "grpo"}, "algorithm.advantage: found 'grpo', expected one of"),
        ("alfworld", None, {"algorithm__options": {"x": 1}}, "algorithm.options.x: unknown"),
    ],
)
def test_what_cannot_be_served_is_named_by_its_key(world, domain, part, keys, message):
    with pytest.raises(ConfigError, match=message):
        checked(world, domain, part, **keys)

"""The quickstart's script: which stages are left."""

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def quickstart(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.chdir(tmp_path)
    import quickstart

    return quickstart


def test_a_loop_that_was_begun_goes_on_with_the_models_that_it_began_with(quickstart, tmp_path):
    assert not quickstart.has_begun("alfworld", 0, [])
    for name in ("policy", "reward", "rewriter"):
        (tmp_path / "cache/quickstart" / name).mkdir(parents=True)
        (tmp_path / "cache/quickstart" / name / "config.json").touch()
    assert not quickstart.has_begun("alfworld", 0, [])
    (tmp_path / "runs/quickstart").mkdir(parents=True)
    (tmp_path / "runs/quickstart/models.json").touch()
    assert quickstart.has_begun("alfworld", 0, ["experiment_is_no_section=1"])
    assert not quickstart.has_begun("alfworld", 1, [])
    assert not quickstart.has_begun("coding", 0, [])
    assert not quickstart.has_begun("alfworld", 0, ["experiment.name=other"])
    (tmp_path / "cache/quickstart/policy/config.json").unlink()
    assert not quickstart.has_begun("alfworld", 0, [])


def test_a_judge_that_learns_from_the_policys_own_steps_plays_the_policy_of_its_seed(quickstart):
    commands = [" ".join(command) for _, command in quickstart.stages("osworld", 2, [])]
    [judge] = [command for command in commands if "osworld/reward.yaml" in command]
    assert judge.endswith("policy.path=cache/quickstart/osworld/policy_2")
    assert not any("policy.path" in " ".join(command) for _, command in quickstart.stages("coding", 2, [])[:-1])

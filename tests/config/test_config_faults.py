"""Every fault of a configuration is told, each with its key, where it was set, and what to write in its place."""

from dataclasses import dataclass

import pytest
from pydantic import Field, PositiveInt, field_validator, model_validator

from rlanything.config.faults import MOVED
from rlanything.config.load import load_as, load_config
from rlanything.config.plugins import make_options
from rlanything.config.reading import kind_of
from rlanything.config.schema import Config
from rlanything.config.section import Section
from rlanything.config.sft import SftConfig
from rlanything.domains.alfworld.options import AlfworldOptions
from rlanything.domains.coding.domain import CodingOptions
from rlanything.domains.registry import OPTIONS, make_domain, resolve_options
from rlanything.errors import ConfigError

MODELS = "experiment: {name: test}\nmodel: {policy: {path: a}, reward: {path: b}, rewriter: {path: c}}\n"


def faults(tmp_path, text: str, *words: str) -> list[str]:
    file = tmp_path / "c.yaml"
    file.write_text(MODELS + text)
    with pytest.raises(ConfigError) as raised:
        load_config([f"config={file}", *words])
    return str(raised.value).replace(str(file), "FILE").splitlines()


def test_every_fault_is_listed_with_where_it_was_set(tmp_path):
    text = "rollout: {num_trial: 0, temperature: hot}\nreward: {band: [0.9, 0.1]}\n"
    assert faults(tmp_path, text, "rollout.temperature=cold", "training.reward.betas=[0.5]", "dry_run=maybe") == [
        "rollout.num_trial: found 0, expected a whole number above 0 (from FILE)",
        "rollout.temperature: found 'cold', expected a number above 0 (from the command line)",
        "reward.band: found [0.9, 0.1], expected [low, high] with 0 <= low <= high <= 1 (from FILE)",
        "training.reward.betas: found [0.5], expected two numbers of at least 0 and below 1 (from the command line)",
        "dry_run: found 'maybe', expected true or false (from the command line)",
    ]


def test_every_rule_that_is_broken_is_listed(tmp_path):
    found = faults(tmp_path, "adaptation: {alpha_low: 0.9}\n", "rollout.top_p=0.9", "reward.num_evaluation=0")
    assert [line.split(":")[0].split("=")[0] for line in found] == [
        "adaptation.alpha_low, alpha_high",
        "rollout.top_p",
        "algorithm.step_weight",
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("training.policy.learning", "training.policy.learning: unknown; known keys there: lr, schedule"),
        ("training.policy.clip", "training.policy.clip: unknown, did you mean clip_low? known keys there: lr, "),
        (
            "engine.polcy.dtype",
            "engine.polcy: unknown, did you mean policy? known keys there: policy, reward, rewriter",
        ),
        ("rollout.policy.num_trial", "rollout.policy: a key of the published code; here: rollout.num_trial, "),
        ("optimizer.name", "optimizer: a key of the published code; here: training.*.lr, "),
        ("evaluaton.num_task", "evaluaton: unknown, did you mean evaluation? known keys there: experiment, model"),
        ("num_trial", "num_trial: unknown, did you mean rollout.num_trial?"),
        ("lr", "lr: unknown, did you mean training.policy.lr or training.reward.lr?"),
        ("cluster.num_device", "cluster.num_device: unknown, did you mean experiment.num_device?"),
    ],
)
def test_an_unknown_key_is_told_the_nearest_known_one(tmp_path, key, message):
    [line] = faults(tmp_path, "", f"{key}=1")
    assert line.startswith(message) and line.endswith("(from the command line)")


# The keys of configs/alfworld_eval.yaml, coding_eval.yaml and osworld_eval.yaml of the published code.
THEIR_FILES = {
    "alfworld": """
experiment: {project: a, node_index: 0}
system: {HF_HOME: a}
model: /models/a
dataset: {environment_type: alfworld, alfworld_data_type: a, environment_file_dir: a, environment_data_dir: a}
rollout: {env_max_parallel: 256, model_length: 9, max_gen_length: 9, gpu_groups: [[0]], if_start_with_think: false}
""",
    "coding": """
wandb: {entity: null}
experiment: {project: a, start_from_scratch: true, node_index: 0}
system: {HF_HOME: a}
model: {policy_model: a, reward_model: b}
dataset: {environment_type: a, train_dataset: a, eval_dataset: a, dataset_state_prefix: a, env_pending_prefix: a}
execute: {num_chunk: 128}
rollout: {reward: {num_response_per_task: 32}}
evaluation: {policy: {num_response_per_task: 32}}
""",
    "osworld": """
experiment: {project: a, node_index: 0, if_rerun: true}
system: {region: a}
model: /models/a
model_type: qwen3vl
dataset: {environment_type: osworld, environment_data_dir: a, example: all}
rollout:
  {num_envs: 16, num_gpu_per_model: 1, max_steps: 50, result_dir: a, action_space: a, observation_type: a,
   coordinate_type: a}
""",
}


@pytest.mark.parametrize("name", THEIR_FILES)
def test_every_key_of_a_published_file_is_told_what_takes_its_place(tmp_path, name):
    (tmp_path / "c.yaml").write_text(THEIR_FILES[name])
    with pytest.raises(ConfigError) as raised:
        load_config([f"config={tmp_path / 'c.yaml'}"])
    lines = str(raised.value).splitlines()
    assert len(lines) > 8
    for line in lines:
        assert "a key of the published code; here: " in line and "docs/from-open-agentrl.md" in line, line


def test_a_warm_start_s_own_model_is_no_key_of_the_published_code(tmp_path):
    (tmp_path / "c.yaml").write_text("role: policy\noutput: x\nmodel: /models/a\n")
    with pytest.raises(ConfigError, match="^model: found '/models/a', expected a mapping of keys"):
        load_as(SftConfig, [f"config={tmp_path}/c.yaml"])


@pytest.mark.parametrize("old", sorted(MOVED))
def test_a_key_that_moved_is_told_where_it_went(tmp_path, old):
    assert faults(tmp_path, "", f"{old}=1") == [f"{old}: moved to {MOVED[old]} (from the command line)"]
    section, name = old.split(".")
    assert faults(tmp_path, f"{section}: {{{name}: 1}}\n") == [f"{old}: moved to {MOVED[old]} (from FILE)"]


def test_the_places_that_keys_moved_to_exist():
    for new in MOVED.values():
        section, _, option = new.partition(".options.")
        if section == "dataset":
            assert option in {**AlfworldOptions.model_fields, **CodingOptions.model_fields}
        elif not option:
            assert kind_of(Config, new) is not None, new


def test_a_warm_start_is_told_where_its_keys_went(tmp_path):
    (tmp_path / "c.yaml").write_text("role: policy\noutput: x\n")
    with pytest.raises(ConfigError, match="dataset.show_actions: moved to dataset.options.show_actions"):
        load_as(SftConfig, [f"config={tmp_path}/c.yaml", "dataset.show_actions=here"])


def test_options_that_do_not_fit_the_domain_are_named():
    config = Config()
    config.dataset.options = {"show_action": "here", "backend": "real"}
    for refuse in (lambda: resolve_options(config.dataset), lambda: make_domain(config)):
        with pytest.raises(ConfigError) as raised:
            refuse()
        assert str(raised.value).splitlines() == [
            "dataset.options.backend: found 'real', expected one of simulator, textworld",
            "dataset.options.show_action: unknown, did you mean show_actions? "
            "known keys there: backend, project, show_actions, first_number",
        ]


@pytest.mark.parametrize("text", ["001", "2026-01-01", "12:30:45", "yes", "a #b", "a: b", "*x", "- x", "0x1F", "a, b"])
def test_a_text_option_is_taken_as_written_on_the_command_line(tmp_path, text):
    @dataclass
    class Options:
        word: str
        names: tuple[str, ...] = ()

    (tmp_path / "c.yaml").write_text("experiment: {name: x}\n")
    words = [f"config={tmp_path}/c.yaml", f"dataset.options.word={text}", "dataset.options.names=[a, b]"]
    found = make_options("dataset.options", Options, load_as(Config, words).dataset.options)
    assert found == Options(text, ("a", "b"))


def test_options_of_another_domain_are_refused():
    config = Config()
    config.dataset.domain, config.dataset.path, config.dataset.options = "coding", "data", {"show_actions": "all"}
    with pytest.raises(ConfigError, match="dataset.options.show_actions: unknown; known keys .*num_test"):
        make_domain(config)


def test_an_unknown_domain_is_named():
    config = Config()
    config.dataset.domain = "alfwrld"
    for refuse in (lambda: resolve_options(config.dataset), lambda: make_domain(config)):
        with pytest.raises(ConfigError, match="dataset.domain: found 'alfwrld', expected one of alfworld, coding"):
            refuse()


def test_resolved_options_are_whole_and_stay_as_they_are():
    config = Config()
    config.dataset.options = {"project": 7}
    for _ in range(2):
        resolve_options(config.dataset)
        assert config.dataset.options == {
            "backend": "simulator",
            "project": "7",
            "show_actions": "all",
            "first_number": 1,
        }
    assert set(OPTIONS) == {"alfworld", "coding", "gymnasium", "openenv", "osworld", "reasoning", "verifiers"}


class Dice(Section):
    """Options of someone's own domain."""

    sides: PositiveInt = 6
    """Sides of a die."""
    loaded: PositiveInt = 1
    """Side that comes most often."""
    colour: str = Field("red", min_length=3)
    """Its colour."""

    @field_validator("sides")
    @classmethod
    def _even(cls, sides: int) -> int:
        if sides % 2:
            raise ValueError("not an even number")
        return sides

    @model_validator(mode="after")
    def _on_the_die(self) -> "Dice":
        if self.loaded > self.sides:
            raise ValueError("loaded is not on the die")
        return self


def test_rules_of_someones_own_options_are_told():
    assert make_options("dice", Dice, {"sides": 8}).sides == 8
    with pytest.raises(ConfigError, match="dice.sides: found 7: not an even number"):
        make_options("dice", Dice, {"sides": 7})
    with pytest.raises(ConfigError, match="dice.colour: found 'x': .*at least 3 characters"):
        make_options("dice", Dice, {"colour": "x"})
    with pytest.raises(ConfigError, match="dice: loaded is not on the die"):
        make_options("dice", Dice, {"loaded": 7})

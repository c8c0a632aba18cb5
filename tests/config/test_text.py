"""Text keys are taken as they are written, paths are expanded once, and what a run writes loads as the same."""

import pytest

from rlanything.config.load import load_as, to_yaml
from rlanything.config.plugins import make_options
from rlanything.config.reading import is_section
from rlanything.config.schema import Config
from rlanything.config.section import Section
from rlanything.config.sft import SftConfig
from rlanything.domains.alfworld.options import AlfworldOptions
from rlanything.domains.registry import OPTIONS
from rlanything.errors import ConfigError

AS_WRITTEN = ["001", "2024-01-01", "1e5", "1_000", "yes", "off", "null", "True", "12:30:00", "0x1F", "~", "~x", ".5"]


def loaded(tmp_path, text, *words, schema=Config):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    return load_as(schema, [f"config={file}", *words])


@pytest.mark.parametrize("text", [*AS_WRITTEN, "a#b", "a: b", "a, [b", "{}", '"quoted"', "", " x", "a=b", "\\n", "é"])
def test_a_text_of_the_command_line_is_taken_as_it_is_written(tmp_path, text):
    config = loaded(tmp_path, "", f"experiment.name={text}", f"dataset.train_split={text}")
    assert config.experiment.name == config.dataset.train_split == text


@pytest.mark.parametrize("text", AS_WRITTEN)
def test_an_unquoted_text_of_a_yaml_file_is_taken_as_it_is_written(tmp_path, text):
    config = loaded(tmp_path, f"experiment: {{name: {text}}}\nevaluation:\n  splits: [{text}, b]\n")
    assert config.experiment.name == text and config.evaluation.splits == [text, "b"]


def test_texts_of_a_list_on_the_command_line_are_taken_as_they_are_written(tmp_path):
    assert loaded(tmp_path, "", "evaluation.splits=[001, yes, '1e5']").evaluation.splits == ["001", "yes", "1e5"]


def test_comments_quotes_and_blocks_are_still_yaml(tmp_path):
    config = loaded(tmp_path, "experiment:\n  name: a#b # c\n  output_dir: 'x # y'\ndataset: {path: }\n")
    assert (config.experiment.name, config.experiment.output_dir, config.dataset.path) == ("a#b", "x # y", "")


def test_numbers_and_bools_are_read_in_every_usual_form(tmp_path):
    text = "training: {policy: {lr: 1e-6, weight_decay: 1, clip_low: .5, max_grad_norm: 1.}}\ndry_run: True\n"
    config = loaded(tmp_path, text, "experiment.seed=7", "training.reward.lr=2E-5")
    policy = config.training.policy
    assert (policy.lr, policy.weight_decay, policy.clip_low, policy.max_grad_norm) == (1e-6, 1.0, 0.5, 1.0)
    assert config.dry_run and config.experiment.seed == 7 and config.training.reward.lr == 2e-5


def test_a_section_whose_keys_are_commented_out_keeps_its_defaults(tmp_path):
    assert loaded(tmp_path, "rollout:\n  # num_trial: 3\nmodel:\n  policy:\n").rollout == Config().rollout


def test_merge_keys_and_anchors_of_yaml_work(tmp_path):
    text = "training:\n  policy: &base {lr: 1e-5, num_update: 2}\n  reward: {<<: *base, num_update: 3}\n"
    training = loaded(tmp_path, text).training
    assert (training.reward.lr, training.reward.num_update, training.policy.num_update) == (1e-5, 3, 2)


def test_an_interpolation_may_name_a_default_a_key_of_the_file_or_an_override(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", "there")
    text = "evaluation: {temperature: '${rollout.temperature}', num_task: '${rollout.num_trial}'}\n"
    words = ["experiment.name=run_${experiment.seed}", "rollout.num_trial=3", "dataset.path=${oc.env:WHERE}"]
    config = loaded(tmp_path, text, *words)
    assert (config.experiment.name, config.dataset.path) == ("run_0", "there")
    assert (config.evaluation.temperature, config.evaluation.num_task) == (1.0, 3)


def test_a_home_folder_is_expanded_in_paths_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    text = "experiment: {name: ~/x, output_dir: ~/runs}\nmodel: {policy: {path: ~/m}, reward: {path: Qwen/Qwen3-4B}}\n"
    config = loaded(tmp_path, text, "dataset.path=~/games")
    paths = (config.experiment.output_dir, config.model.policy.path, config.model.reward.path, config.dataset.path)
    assert paths == ("/home/me/runs", "/home/me/m", "Qwen/Qwen3-4B", "/home/me/games")
    assert config.experiment.name == "~/x"
    words = ["role=policy", "output=~/out", "data=~/d.jsonl", "model.path=~/m"]
    sft = loaded(tmp_path, "", *words, schema=SftConfig)
    assert (sft.output, sft.data, sft.model.path) == ("/home/me/out", "/home/me/d.jsonl", "/home/me/m")


def test_a_path_is_expanded_once(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    written = to_yaml(loaded(tmp_path, "", "dataset.path=~/games"))
    monkeypatch.setenv("HOME", "/home/other")
    assert loaded(tmp_path, written).dataset.path == "/home/me/games"


@pytest.mark.parametrize(
    "text", [*AS_WRITTEN, "a#b", "a: b", "${x}", "\\${x}", "\\", '"q"', "line\nline", " x ", "é", "- a"]
)
def test_the_written_configuration_loads_as_an_equal_one(tmp_path, text):
    config = Config()
    config.experiment.name = config.dataset.train_split = text
    config.evaluation.splits = [text, "b"]
    config.dataset.options = {
        "text": text,
        "number": 1e-7,
        "whole": 3,
        "none": None,
        "yes": True,
        "deep": {"x": [text]},
    }
    config.training.policy.lr, config.training.policy.betas = 3e-7, [0, 0.99]
    assert loaded(tmp_path, to_yaml(config)) == config


def test_the_written_configuration_of_a_warm_start_loads_as_an_equal_one(tmp_path):
    config = SftConfig(role="reward", output=str(tmp_path), target=0.64, seed=3)
    assert loaded(tmp_path, to_yaml(config), schema=SftConfig) == config


def test_options_are_read_as_yaml_and_a_whole_number_is_text_again_if_its_key_is(tmp_path):
    dataset = loaded(
        tmp_path, "dataset: {options: {project: 001, a: yes, b: 2024-01-01}}", "dataset.options.c=2"
    ).dataset
    assert dataset.options == {"project": "001", "a": "yes", "b": "2024-01-01", "c": 2}
    assert make_options("dataset.options", AlfworldOptions, {"project": 12}).project == "12"
    with pytest.raises(ConfigError, match="dataset.options.project: found 100000.0, expected text in quotes"):
        make_options(
            "dataset.options", AlfworldOptions, loaded(tmp_path, "", "dataset.options.project=1e5").dataset.options
        )
    assert (
        make_options(
            "dataset.options", AlfworldOptions, loaded(tmp_path, "", "dataset.options.project='1e5'").dataset.options
        ).project
        == "1e5"
    )


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_a_value_from_python_has_exactly_the_type_of_its_field(value):
    config = Config()
    with pytest.raises(ValueError):
        config.rollout.num_trial = value
    with pytest.raises(ValueError):
        Config(rollout={"num_trial": value})
    config.rollout.num_trial = 2
    assert config.rollout.num_trial == 2 and Config().rollout.num_trial == 16


def test_two_configurations_share_nothing():
    a, b = Config(), Config()
    a.training.policy.lr, a.experiment.sinks = 1.0, ["wandb"]
    a.dataset.options["x"] = 1
    assert b == Config() and a.training.reward == b.training.reward


def sections(schema: type[Section]) -> set[type[Section]]:
    inner = [f.annotation for f in schema.model_fields.values() if isinstance(f.annotation, type)]
    return {schema, *(s for kind in inner if issubclass(kind, Section) for s in sections(kind))}


def test_every_key_and_every_section_says_what_it_means():
    found = {*sections(Config), *sections(SftConfig), *OPTIONS.values()}
    assert len(found) > 15
    for section in found:
        assert section.__doc__, section
        for name, field in section.model_fields.items():
            assert field.description or is_section(field.annotation), (section, name)

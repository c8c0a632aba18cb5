"""A run's folder must never mix the episodes and checkpoints of two runs."""

from pathlib import Path

import pytest

from rlanything.config.load import load_as
from rlanything.config.schema import Config
from rlanything.errors import RunError
from rlanything.runs.folder import RunFolder, fingerprint


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A run of local models, none of which is ever loaded here."""
    made = Config()
    made.experiment.output_dir, made.experiment.name = str(tmp_path / "runs"), "run"
    for role in ("policy", "reward", "rewriter"):
        model = tmp_path / role
        model.mkdir()
        (model / "config.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"weights")
        made.model.of(role).path = str(model)
    return made


def begin(config: Config) -> None:
    """Open the folder as a run does, and record something."""
    folder = RunFolder(config)
    with folder.open():
        folder.metrics.write_text("{}\n")


def test_the_same_run_goes_on(config: Config) -> None:
    begin(config)
    begin(config)


@pytest.mark.parametrize("key", ["rollout.max_interaction_step", "experiment.seed"])
def test_a_run_with_other_rules_is_refused(config: Config, key: str) -> None:
    begin(config)
    section, name = key.split(".")
    setattr(getattr(config, section), name, 7)
    with pytest.raises(RunError, match=rf"holds a run with {key}=\d+, now 7"):
        begin(config)


def test_a_run_from_before_a_key_existed_goes_on_with_its_default(config: Config) -> None:
    config.dataset.options = {"level": "easy", "families": ""}
    begin(config)
    file = Path(config.experiment.output_dir) / config.experiment.name / "config.yaml"
    older = file.read_text().replace("  trained: true\n", "").replace("    families: ''\n", "")
    assert "trained" not in older and "families" not in older
    file.write_text(older)
    with RunFolder(config).open():
        pass
    file.write_text(older)
    config.reward.trained = False
    with pytest.raises(RunError, match=r"holds a run with reward\.trained=True, now False"), RunFolder(config).open():
        pass


def test_a_run_with_another_algorithm_is_refused(config: Config) -> None:
    begin(config)
    config.algorithm.options = {"step_discount": 0.5}
    with pytest.raises(RunError, match=r"holds a run with algorithm\.options={}, now {'step_discount': 0\.5}"):
        begin(config)


@pytest.mark.parametrize(("key", "value"), [("lora_rank", 2), ("lora_alpha", 8.0), ("train_vision", False)])
@pytest.mark.parametrize("role", ["policy", "reward"])
def test_a_run_that_trains_other_weights_is_refused(config: Config, role: str, key: str, value: object) -> None:
    """A checkpoint holds only what trains: it could not be read, or, with another alpha, would be another model."""
    begin(config)
    config.training.of(role).lr = 1e-3  # may change
    begin(config)
    setattr(config.training.of(role), key, value)
    with pytest.raises(RunError, match=rf"holds a run with training\.{role}\.{key}=\S+, now {value}"):
        begin(config)


def test_the_configuration_that_a_run_writes_loads_as_the_same_one(config: Config) -> None:
    config.experiment.name, config.dataset.options = "001", {"project": "1e5", "show_actions": "here"}
    config.training.policy.lr = 3e-7
    begin(config)
    begin(config)
    assert load_as(Config, [f"config={RunFolder(config).path}/config.yaml"]) == config


def test_what_an_error_says_to_raise_may_be_raised(config: Config) -> None:
    begin(config)
    config.rollout.env_timeout_s, config.rollout.num_retry, config.rollout.max_failure_rate = 7.0, 7, 0.7
    begin(config)


def test_a_run_whose_model_was_remade_at_the_same_path_is_refused(config: Config) -> None:
    begin(config)
    Path(config.model.reward.path, "model.safetensors").write_bytes(b"WEIGHTS")
    with pytest.raises(RunError, match="another reward model"):
        begin(config)


def test_an_evaluation_that_was_cut_off_in_its_first_split_is_not_mixed_with_another(config: Config) -> None:
    folder = RunFolder(config)
    with folder.open():
        (folder.path / "evaluations/parts").mkdir(parents=True)
        (folder.path / "evaluations/parts/train_000000.parquet").touch()
    config.evaluation.temperature = 0.5
    with pytest.raises(RunError, match=r"holds a run with evaluation\.temperature=1\.0, now 0\.5"):
        begin(config)


def test_a_run_keeps_its_templates_and_goes_on_with_no_others(config: Config, tmp_path: Path) -> None:
    file = tmp_path / "prompts/judge.jinja"
    file.parent.mkdir()
    file.write_text("one")
    config.dataset.prompt = str(file.parent)
    with RunFolder(config).open():
        pass
    file.write_text("two")  # nothing was measured yet
    begin(config)
    begin(config)
    assert (RunFolder(config).path / "prompts/judge.jinja").read_text() == "two"
    file.write_text("three")
    with pytest.raises(RunError, match=r"other templates than .*prompts has now \(it began with those of"):
        begin(config)


def test_a_run_that_failed_at_its_start_may_be_started_otherwise(config: Config) -> None:
    with RunFolder(config).open():
        pass
    config.rollout.max_interaction_step = 7
    begin(config)


def test_a_model_without_a_path_has_no_fingerprint_of_the_working_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nohup.out").write_text("anything")
    assert fingerprint("") == ""


def test_a_used_folder_is_refused_where_resume_is_never(config: Config) -> None:
    begin(config)
    config.experiment.resume = "never"
    with pytest.raises(RunError, match="resume=never"):
        begin(config)


def test_two_processes_never_write_one_run(config: Config) -> None:
    with RunFolder(config).open():
        with pytest.raises(RunError, match="another process"):
            begin(config)


def test_weights_of_the_same_size_have_other_fingerprints(tmp_path: Path) -> None:
    weights, found = tmp_path / "model.safetensors", set()
    for place in (0, (5 << 20) // 2, (5 << 20) - 1, None):  # the first, middle and last piece
        content = bytearray(5 << 20)
        if place is not None:
            content[place] = 1
        weights.write_bytes(content)
        found.add(fingerprint(str(tmp_path)))
    assert len(found) == 4


def test_templates_of_any_encoding_are_kept_and_compared(config: Config, tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.mkdir()
    (written / "policy.jinja").write_bytes("Wähle".encode("latin-1"))  # what it may be, the domain says
    config.dataset.prompt = str(written)
    with RunFolder(config).open():
        assert (RunFolder(config).path / "prompts/policy.jinja").read_bytes() == b"W\xe4hle"

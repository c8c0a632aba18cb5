"""A configuration that cannot run is refused before anything starts, with a message that names the key."""

import re
from pathlib import Path
from typing import get_args

import pytest
from reasoning_problems import GENERATED_REASONING

from rlanything.config.load import load_as, load_config, load_sft
from rlanything.config.schema import Config, ExperimentConfig
from rlanything.config.sft import SftConfig
from rlanything.config.sweep import SweepConfig
from rlanything.domains.registry import check_entry, resolve_options
from rlanything.errors import ConfigError
from rlanything.plan.placement import place
from rlanything.runs import sinks
from rlanything.sweep.runner import cells

ROOT = Path(__file__).parents[2]


def written(tmp_path: Path, text: str = "") -> str:
    file = tmp_path / "c.yaml"
    models = "model: {policy: {path: a}, reward: {path: b}, rewriter: {path: c}}\n"
    file.write_text("experiment: {name: test}\n" + models + text)
    return f"config={file}"


@pytest.mark.parametrize("file", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda f: f.name)
def test_every_shipped_yaml_loads(file):
    if file.stem in ("policy", "reward", "rewriter"):
        config = load_sft([f"config={file}"])
    elif file.stem.endswith("_sft"):  # its data is fetched by the user
        config = load_as(SftConfig, [f"config={file}"])
    else:
        config = load_config([f"config={file}"], learns="eval" not in file.stem)
    resolve_options(config.dataset)


@pytest.mark.parametrize("file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda f: f.name)
def test_every_shipped_sweep_has_variants_that_load(file, monkeypatch):
    monkeypatch.chdir(ROOT)
    sweep = load_as(SweepConfig, [f"config={file}"])
    assert len(cells(sweep)) == len(sweep.seeds) * len(sweep.variants) > 3


def test_an_entry_point_takes_its_domain_and_those_derived_from_it():
    check_entry("alfworld", "alfworld", "train")
    check_entry(GENERATED_REASONING, "reasoning", "train")
    for found, command in (("coding", "train"), ("coding", "eval"), (GENERATED_REASONING, "eval")):
        message = f"dataset.domain: found {found}, expected alfworld; run `rlanything {command}` for it"
        with pytest.raises(ConfigError, match=re.escape(message)):
            check_entry(found, "alfworld", command)


@pytest.mark.parametrize("name", ["alfworld_eval", "coding_eval"])
def test_an_evaluation_spreads_over_nodes_without_a_word_of_learners(name):
    words = ["experiment.num_node=2", "experiment.num_device=8", "engine.policy.num_replica=12"]
    sampling = ["rollout.top_p=0.9", "model.reward.path=b", "engine.reward.num_replica=4"]
    config = load_config([f"config={ROOT}/configs/{name}.yaml", *words, *sampling], learns=False)
    placed = place(config, ["policy", "reward"], learns=False)
    assert [len(slots) for slots in placed.engines.values()] == [12, 4] and not placed.learners
    load_config([f"config={ROOT}/configs/{name}.yaml", "model.reward.path=b"], learns=False)  # one accelerator


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.num_trail=3", r"rollout.num_trail: unknown, did you mean num_trial\? known keys there: num_trial, "),
        ("rollout.num_trial=many", "rollout.num_trial: found 'many', expected a whole number above 0"),
        ("rollout.num_trial=0", "rollout.num_trial: found 0, expected a whole number above 0"),
        (f"rollout.num_trial={'9' * 5000}", "rollout.num_trial: found '9{100,}[.]{3}, expected a whole number above 0"),
        ("rollout.num_trial=3.0", "rollout.num_trial: found 3.0, expected a whole number above 0"),
        ("rollout.num_trial=true", "rollout.num_trial: found true, expected a whole number above 0"),
        ("rollout.max_staleness=true", "rollout.max_staleness: found true, expected a whole number from 0 to 1"),
        ("rollout.temperature=false", "rollout.temperature: found false, expected a number above 0"),
        ("dry_run=1", "dry_run: found 1, expected true or false"),
        ("foo=1", "foo: unknown; known keys there: .*adaptation"),
        ("rollout=3", "rollout: found 3, expected a mapping of keys"),
        ("rollout.num_trial.x=3", "rollout.num_trial: found {'x': 3}, expected a whole number"),
        ("evaluation.splits=train", "evaluation.splits: found 'train', expected a list of texts"),
        ("engine.policy.kind=tgi", "engine.policy.kind: found 'tgi', expected one of vllm, transformers"),
        ("rollout.top_p=0.9", "allow_biased_sampling"),
        ("rollout.top_p=1.5", "rollout.top_p: found 1.5, expected a number above 0 and at most 1"),
        ("training.policy.lr=[", r"argument 'training.policy.lr=\[': its value is no valid YAML"),
        ("training.policy.lr=${foo}", "training.policy.lr: cannot be resolved: .*foo.*from the command line"),
        ("training.policy.lr=.inf", "training.policy.lr: found inf"),
        ("training.policy.lr=1e999", "training.policy.lr: found inf"),
        ("training.reward.betas=[0.9]", r"training.reward.betas: found \[0.9\], expected two numbers"),
        ("training.reward.betas=[0.9,1.0]", r"training.reward.betas: found \[0.9, 1.0\], expected two numbers"),
        ("experiment.seed=-1", "experiment.seed: found -1, expected a whole number of at least 0"),
        ("algorithm.step_weight=.nan", "algorithm.step_weight: found nan"),
        ("algorithm.reward=success", "algorithm.reward: found 'success', expected one of outcome, score"),
        (
            "experiment.num_device=2",
            "training.policy.zero_stage=0: cluster.placement=colocated hands accelerators over",
        ),
        ("training.policy.lora_rank=-1", "training.policy.lora_rank: found -1, expected a whole number of at least 0"),
        ("reward.num_evaluation=0", "algorithm.step_weight=1.0: needs judgements"),
        ("algorithm.negative_weight=-1", "algorithm.negative_weight: found -1, expected a number of at least 0"),
        ("algorithm.band=[0.9,0.1]", r"algorithm.band: found \[0.9, 0.1\], expected \[low, high\] with 0 <= low"),
        ("reward.band=[0.1,0.2,0.3]", r"reward.band: found \[0.1, 0.2, 0.3\], expected \[low, high\]"),
        ("reward.temperature=0", "reward.temperature: found 0, expected a number above 0"),
        ("rollout.num_rollout_per_trial=1", "num_rollout_per_trial=1: fewer than rollout.min_group=2"),
        ("rollout.num_branch=7", "num_branch=7 of rollout.num_rollout_per_trial=8: fewer than rollout.min_group=2"),
        ("rollout.num_branch=2 algorithm.truncated=drop", "truncated=drop, rollout.num_branch=2: an episode that is"),
        ("rollout.num_branch=2 algorithm.keep=4", "keep=4, rollout.num_branch=2: an episode that is left out would"),
        ("rollout.num_retry=-1", "rollout.num_retry: found -1, expected a whole number of at least 0"),
        ("experiment.sinks=[tensorbord]", r"experiment.sinks: found \['tensorbord'\], expected .* some of tensorboard"),
        ("experiment.num_device=1", r"gpu_memory_utilization: 0.85 \+ 0.85 \+ 0.85 of one accelerator"),
        ("experiment.num_device=1 engine.policy.num_replica=2", "engine.policy.num_replica=2, .* on one accelerator"),
        ("experiment.num_device=1 cluster.placement=split", "placement=split: one accelerator cannot be split"),
        ("experiment.num_device=1 engine.reward.tensor_parallel_size=2", "tensor_parallel_size=2: expected 1 and 1"),
        (
            "experiment.num_device=1 cluster.num_learner=2",
            "cluster.num_learner=2: expected at most 1 on one accelerator",
        ),
        ("engine.policy.kind=transformers engine.policy.tensor_parallel_size=2", "the small engine is one process"),
        ("engine.policy.own_process=true", "acting episodes would wait for one another"),
        ("engine.rewriter.max_model_len=100", "engine.rewriter.max_model_len: found 100, expected more than"),
        ("evaluation.splits=[a,b,a]", "evaluation.splits: found a twice"),
        (f"evaluation.splits=[{'a' * 300}]", "evaluation.splits: found 'aaa.*, expected names of at most 200 bytes"),
        ("evaluation.splits.x=5", "evaluation.splits.x: there is no such key"),
        ("adaptation.alpha_low=0.9", "alpha_low, alpha_high: found 0.9, 0.8, expected alpha_low < alpha_high"),
        ("algorithm.overlong_limit=2048", "less than algorithm.overlong_buffer=4096"),
        (
            "rollout.max_episode_tokens=9 rollout.history=paper",
            "max_episode_tokens=9: prompts of",
        ),
        ("training.policy.dual_clip=0.5", "training.policy.dual_clip=0.5: expected more than 1, or 0 for none"),
        ("adaptation.alpha_high=1.2", "adaptation.alpha_high: found 1.2, expected a number from 0 to 1"),
        ("engine.policy.max_model_len=100", "engine.policy.max_model_len: found 100, expected more than"),
        ("training.policy.offload=true", "training.policy.offload=true with zero_stage=0: DeepSpeed holds"),
        ("training.policy.zero_stage=3 training.policy.compile=true", "training.policy.compile=true with zero_stage=3"),
        ("training.policy.zero_stage=7", "training.policy.zero_stage: found 7, expected a whole number from 0 to 3"),
        ("rollout.max_staleness=1", "rollout.max_staleness=1: one process cannot make tokens while it learns"),
        (
            "rollout.max_staleness=1 cluster.num_learner=2 training.policy.importance_cap=0",
            "training.policy.importance_cap=0 with rollout.max_staleness=1: nothing would correct",
        ),
        ("model.rewriter.path=", "model.rewriter.path: found nothing, expected a folder or hub name"),
        ("verbose", "argument 'verbose': expected key=value"),
        ("=3", "argument '=3': expected key=value"),
        ("rollout..num_trial=3", "expected key=value"),
    ],
)
def test_a_bad_override_is_named(tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        load_config([written(tmp_path), *override.split()])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("role=critic", "role: found 'critic', expected one of policy, reward, rewriter"),
        ("output=", "output: found '', expected a folder"),
        ("training.schedule=linaer", "training.schedule: found 'linaer', expected one of constant, linear, cosine"),
        ("training.num_updates=3", "training.num_updates: unknown, did you mean num_update"),
        ("engine.kind=tgi", "engine.kind: found 'tgi'"),
        ("batch=0", "batch: found 0, expected a whole number above 0"),
        ("data=none.jsonl", "data=none.jsonl: there is no such file"),
        ("model.path=", "model.path: found nothing"),
    ],
)
def test_a_bad_override_of_a_warm_start_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        load_sft([f"config={ROOT}/configs/quickstart/alfworld/policy.yaml", override])


def test_a_warm_start_without_a_role_or_an_output_names_both(tmp_path):
    (tmp_path / "empty.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError) as raised:
        load_as(SftConfig, [f"config={tmp_path}/empty.yaml"])
    assert str(raised.value).splitlines() == [
        "role: found nothing, expected one of policy, reward, rewriter",
        "output: found nothing, expected a folder",
    ]


def test_weights_are_not_broadcast_to_engines_that_share_accelerators(tmp_path):
    stages = ["training.policy.zero_stage=2", "training.reward.zero_stage=2"]
    with pytest.raises(ConfigError, match="cluster.weight_transfer=broadcast: .* cluster.placement=split"):
        load_config([written(tmp_path), "experiment.num_device=2", *stages, "cluster.weight_transfer=broadcast"])


def test_adapters_of_a_model_in_parts_do_not_share_accelerators(tmp_path):
    stages = ["training.policy.zero_stage=3", "training.reward.zero_stage=2", "training.policy.lora_rank=8"]
    with pytest.raises(ConfigError, match="training.policy.lora_rank with zero_stage=3: .* use zero_stage=2"):
        load_config([written(tmp_path), "experiment.num_device=2", *stages])


def test_the_sinks_that_are_allowed_are_those_that_exist():
    [element] = get_args(ExperimentConfig.model_fields["sinks"].annotation)
    assert set(get_args(element)) == set(sinks.SINKS)


def test_biased_sampling_is_possible_where_it_is_asked_for(tmp_path):
    config = load_config([written(tmp_path), "rollout.top_p=0.9", "rollout.allow_biased_sampling=true"])
    assert config.rollout.top_p == 0.9


def test_a_role_that_a_run_does_not_use_needs_no_model(tmp_path):
    (tmp_path / "one.yaml").write_text("experiment: {name: test}\nmodel: {policy: {path: a}}\n")
    alone = ["reward.num_evaluation=0", "algorithm.step_weight=0", "adaptation.enabled=false"]
    assert load_config([f"config={tmp_path}/one.yaml", *alone]).model.reward.path == ""
    with pytest.raises(ConfigError, match=r"(?s)model.reward.path: found nothing.*model.rewriter.path: found nothing"):
        load_config([f"config={tmp_path}/one.yaml"])


def test_overrides_win_over_the_file_and_the_file_over_the_defaults(tmp_path):
    config = load_config([written(tmp_path, "rollout: {num_trial: 3, temperature: 0.5}\n"), "rollout.num_trial=5"])
    assert (config.rollout.num_trial, config.rollout.temperature) == (5, 0.5)
    assert config.rollout.num_rollout_per_trial == Config().rollout.num_rollout_per_trial
    words = ["rollout.num_trial=5", "rollout={num_trial: 6}", "rollout.num_trial=7"]
    assert load_config([written(tmp_path), *words]).rollout.num_trial == 7, "the last one wins"


def test_a_whole_section_on_the_command_line_is_merged_and_options_are_replaced(tmp_path):
    file = written(tmp_path, "rollout: {num_trial: 3}\nalgorithm: {options: {step_discount: 0.8}}\n")
    config = load_config([file, "rollout={temperature: 0.5}", "algorithm.options={}", "dataset.options.a.b=2"])
    assert (config.rollout.num_trial, config.rollout.temperature) == (3, 0.5)
    assert config.algorithm.options == {} and config.dataset.options == {"a": {"b": 2}}


def test_a_missing_file_a_missing_key_and_broken_yaml_are_told_apart(tmp_path):
    def refused(text: str, message: str) -> None:
        (tmp_path / "bad.yaml").write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_config([f"config={tmp_path}/bad.yaml"])

    with pytest.raises(ConfigError, match="there is no such file"):
        load_config([f"config={tmp_path}/none.yaml"])
    with pytest.raises(ConfigError, match=f"config={tmp_path}: cannot be read"):
        load_config([f"config={tmp_path}"])
    refused("experiment: {}\n", "experiment.name: found nothing")
    refused("", "experiment.name: found nothing")
    refused("a: [1\n", "not valid YAML")
    refused("a: 1\nb: 2\na: 3\n", "(?s)not valid YAML: found the key a twice.*line 3")
    refused("&a [*a]", "not valid YAML: found an alias that contains itself")
    refused("[a, b]", r"found \['a', 'b'\], expected a mapping of sections")
    refused("rollout.num_trial: 3", "rollout.num_trial: a YAML file nests its keys")
    with pytest.raises(ConfigError, match="expected exactly one config="):
        load_config([])


@pytest.mark.parametrize("name", ["..", "../x", "a/../b", "/tmp/x", "a\nb", "a" * 300, "a//b", "\udcff"])
def test_a_run_s_name_stays_within_the_folder_of_runs(name, tmp_path):
    with pytest.raises(ConfigError, match="^experiment.name: found .*, expected the name of a folder"):
        load_config([f"config={ROOT}/configs/alfworld_rl.yaml", f"experiment.name={name}"])


@pytest.mark.parametrize("name", ["a/b", "ä b", "001", "x" * 200])
def test_other_names_are_a_run_s(name):
    load_config([f"config={ROOT}/configs/alfworld_rl.yaml", f"experiment.name={name}"])

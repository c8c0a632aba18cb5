"""`dry_run=true`: the plan of the paper's recipe, here and now, without a GPU."""

import re
import shutil
from pathlib import Path

import pytest
from runs_helpers import small_config
from tiny_vision import write_vision_model

from rlanything.config.load import load_config
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.engines.base import EngineError
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError, ModelError, TaskError
from rlanything.plan.memory import check_memory, learner_bytes, model_size
from rlanything.train import train

ROOT = Path(__file__).parents[2]


def plan_without_data(words):
    """All of a plan is printed before it says what is missing."""
    with pytest.raises(TaskError, match="the run would stop here: dataset.path"):
        train(load_config(words))


def test_the_papers_recipe_is_planned_without_a_gpu(capsys, tmp_path):
    words = [f"config={ROOT}/configs/alfworld_rl.yaml", "dry_run=true", f"experiment.output_dir={tmp_path}"]
    plan_without_data(words)
    said = capsys.readouterr().out
    assert "8 node(s), 64 accelerators" in said and "7 B (its name)" in said and "nothing was started" in said
    assert (
        "a step at most: 16 tasks and 16 candidates x 8 episodes = 256 episodes, 10240 turns, 20.48 M policy tokens"
        in said
    )
    assert "the rewriter: at most 128 proposals a step, 1.05 M tokens" in said
    assert not list(tmp_path.iterdir())


def test_a_learners_bytes_a_parameter():
    def of(**keys):
        return learner_bytes(1.0, LearnerConfig(**{"kl_beta": 0.0, "dtype": "bfloat16", **keys}), world=4)

    assert of() == 4 + 2 + 4 + 8  # float32 weights and their bfloat16 copy, gradients, two moments
    assert of(dtype="float32") == 4 + 4 + 8
    assert of(zero_stage=1) == 4 + 2 + 4 + (8 + 4) / 4  # and the part of the weights that the optimizer steps on
    assert of(zero_stage=2) == 4 + 2 + (4 + 8 + 4) / 4
    assert of(zero_stage=3) == 2 + (4 + 4 + 8 + 4) / 4
    assert of(zero_stage=3, gradient_checkpointing=True) == (4 + 4 + 8 + 4) / 4
    assert of(zero_stage=1, offload=True) == 4 + 2 + 4
    assert of(kl_beta=0.01) - of() == 4  # the frozen reference, float32
    assert of(kl_beta=0.01, zero_stage=3) - of(zero_stage=3) == 4 / 4


def test_adapters_take_what_training_them_takes():
    """Of Qwen2.5-7B: its layers are 3584 wide, with 512 wide keys and values and a feed-forward of 18944."""
    exact = 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))  # a rank
    config = LearnerConfig(dtype="bfloat16", lora_rank=64)
    counted = learner_bytes(7.6e9, config, world=4) - 2 * 7.6e9
    assert 1 < counted / (64 * exact * (4 + 2 + 4 + 8)) < 1.5
    assert learner_bytes(7.6e9, LearnerConfig(dtype="bfloat16", lora_rank=64, zero_stage=2), 4) < counted + 2 * 7.6e9


def test_heads_that_cannot_be_shared_out_are_refused_and_absent_data_is_told(world, tmp_path, capsys):
    config = small_config(world.games, world.model, tmp_path, "run")
    config.dry_run = True
    train(config)
    assert "train: 24 tasks, 6 of them train" in capsys.readouterr().out
    config.dataset.path = str(tmp_path)
    with pytest.raises(TaskError, match="the run would stop here: "):
        train(config)
    assert "the run: 4 steps" in capsys.readouterr().out, "the rest is told first"
    config.engine.policy.tensor_parallel_size = 64
    with pytest.raises(EngineError, match="tensor_parallel_size=64 does not divide"):
        train(config)


def test_shared_accelerators_hold_the_engines_or_one_learner_at_a_time():
    config = load_config([f"config={ROOT}/configs/alfworld_rl.yaml", "experiment.device_memory_gb=20"])
    engines = {("policy", "engine"): 12.0, ("reward", "engine"): 6.0}
    parts = engines | {("policy", "learner"): 15.0, ("reward", "learner"): 19.0}
    assert "reward learner 19.0 = 19.0 of 20 GiB" in check_memory(config, {(0, 0): parts})
    both = "policy engine 12.0 . reward engine 9.0 = 21.0 of 20 GiB: the policy engine is too large; "
    with pytest.raises(ConfigError, match=both + "lower engine.policy.gpu_memory_utilization$"):
        check_memory(config, {(0, 0): parts | {("reward", "engine"): 9.0}})


def test_engines_that_take_weights_from_learners_beside_them_need_room_for_both(capsys):
    words = [f"config={ROOT}/configs/alfworld_rl.yaml", "dry_run=true", "experiment.num_node=2"]
    words += [f"engine.{role}.num_replica={n}" for role, n in (("policy", 8), ("reward", 3), ("rewriter", 2))]
    words += ["engine.rewriter.gpu_memory_utilization=0.1", "engine.policy.gpu_memory_utilization=0.2"]
    words += ["engine.reward.gpu_memory_utilization=0.2", "training.reward.zero_stage=2"]
    words += ["training.reward.kl_reference=initial"]  # one frozen copy more
    words += [f"training.{role}.micro_batch_tokens=2048" for role in ("policy", "reward")]
    both = r"reward learner \d+.\d \+ policy engine's weights 13.0 \+ reward transfer \d+.\d = \d+"
    with pytest.raises(
        ConfigError, match=both + r".*the reward learner is too large; .* cluster.weight_transfer=store"
    ):
        train(load_config([*words, "experiment.device_memory_gb=155"]))
    plan_without_data([*words, "experiment.device_memory_gb=155", "cluster.weight_transfer=store"])
    assert re.search(r"policy .* store\s", capsys.readouterr().out)
    plan_without_data([*words, "experiment.device_memory_gb=170"])
    assert re.search(r"policy .* ipc\s", capsys.readouterr().out)


def test_an_engine_takes_its_share_of_the_accelerator_and_its_weights_must_fit_into_it(capsys):
    words = [f"config={ROOT}/configs/alfworld_rl_one_gpu.yaml", "dry_run=true"]
    plan_without_data([*words, *(f"model.{role}.path=Qwen/Qwen2.5-1.5B-Instruct" for role in ("policy", "reward"))])
    told = capsys.readouterr().out
    assert "policy engine 32.0 + reward engine 24.0 + rewriter engine 12.0 = 68.0 of 80 GiB" in told
    assert "learner ranks: 1, on node 0" in told and re.search(r"policy .* 1 x 1 +node 0 +2.79 +29.21 +36.32", told)
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization=0.01 of 80 GiB is 0.8, and its weights take 0.9"):
        train(load_config([*words, "engine.policy.gpu_memory_utilization=0.01"]))
    more = "set training.policy.offload=true, or raise experiment.num_node, or set cluster.weight_transfer=store$"
    with pytest.raises(ConfigError, match=f"(?m)the policy learner is too large; {more}"):
        train(load_config([*words, "model.policy.path=Qwen/Qwen2.5-7B-Instruct", "model.reward.path=some-7B"]))


def test_learners_that_do_not_fit_are_told_what_they_have_not_done_yet():
    words = [f"config={ROOT}/configs/alfworld_rl.yaml", "dry_run=true", "experiment.num_node=1"]
    words += [f"engine.{role}.num_replica={n}" for role, n in (("policy", 4), ("reward", 1), ("rewriter", 1))]
    fewer = "lower engine.*.num_replica, for learners have what engines leave, or raise experiment.num_node"
    for more, told in [
        (["cluster.placement=split"], f"set training.reward.offload=true, or {fewer}"),
        (
            ["cluster.placement=split", "training.reward.offload=true", "training.policy.offload=true"],
            f"is too large; {fewer}",
        ),
        (
            ["cluster.placement=split", "training.reward.zero_stage=0", "cluster.num_learner=1"],
            "raise training.reward.zero_stage, or set training.reward.offload=true (with zero_stage>0), or raise "
            "cluster.num_learner, or raise experiment.num_node",
        ),
        (
            ["training.reward.zero_stage=1", "training.policy.offload=true", "training.reward.offload=true"],
            "raise training.reward.zero_stage, or raise experiment.num_node",
        ),
    ]:
        with pytest.raises(ConfigError, match="(?m)" + re.escape(told) + "$"):
            train(load_config([*words, *more]))


def test_a_model_that_was_loaded_from_the_hub_before_is_counted_exactly(world, tmp_path, monkeypatch):
    commit = "0" * 40
    repository = tmp_path / "models--org--some-7B"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / commit).symlink_to(world.model)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = model_size(ModelConfig(path="org/some-7B"))
    assert found.parameters == model_size(ModelConfig(path=str(world.model))).parameters
    assert found.source == "config.json", "weights may be there in part"
    assert model_size(ModelConfig(path="org/other-7B")).parameters == 7e9


def test_the_small_engine_takes_nothing_of_an_accelerator(capsys):
    words = [f"config={ROOT}/configs/alfworld_rl_one_gpu.yaml", "dry_run=true", "engine.rewriter.kind=transformers"]
    plan_without_data(words)
    assert "reward engine 24.0 + rewriter engine 0.0 = 56.0 of 80 GiB" in capsys.readouterr().out


def test_a_model_whose_size_nobody_tells_is_named():
    assert model_size(ModelConfig(path="org/some-14B-chat")).parameters == 14e9
    with pytest.raises(ConfigError, match="its name does not tell its size"):
        model_size(ModelConfig(path="org/some-chat"))


def test_images_are_counted_and_too_many_for_a_prompt_are_refused(world, tmp_path, capsys):
    folder = write_vision_model(tmp_path / "model")
    config = small_config(world.games, folder, tmp_path, "run", "vllm")
    config.dataset.domain, config.dataset.path, config.dataset.options = "osworld", "", {"size": 4, "eval_size": 2}
    config.dry_run = True
    for role in ("policy", "reward"):
        config.engine.of(role).max_images = 2
    train(config)
    each = Chat(ModelConfig(path=str(folder))).image_tokens((192, 160))
    assert f"policy: 2 images of 192 x 160 are {2 * each} tokens" in capsys.readouterr().out and each > 1
    config.engine.reward.max_images = 512 // each + 1
    with pytest.raises(ConfigError, match=rf"engine.reward.max_images={512 // each + 1}: .*max_model_len is 512"):
        train(config)


def test_a_plan_whose_activations_do_not_fit_is_refused_after_all_is_told(capsys):
    words = [f"config={ROOT}/configs/alfworld_rl.yaml", "dry_run=true", "training.reward.micro_batch_tokens=131072"]
    told = r"reward learner 4.1 \+ reward activations \d+.\d = \d+.\d of 80 GiB: the reward activations are too large; "
    with pytest.raises(ConfigError, match=told + "lower training.reward.micro_batch_tokens\n.*would stop here: "):
        train(load_config(words))
    said = capsys.readouterr().out
    assert re.search(r"\n *reward .* no *\n", said) and re.search(r"\n *policy .* yes *\n", said), "a row per role"
    assert "activations of the reward learner: 131,072 tokens at once, " in said and "nothing was started" in said


def test_a_model_whose_weights_are_not_safetensors_is_counted_by_its_config(world, tmp_path):
    folder = shutil.copytree(world.model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "pytorch_model.bin").touch()
    found = model_size(ModelConfig(path=str(folder)))
    assert found.source == "config.json"
    assert found.parameters == model_size(ModelConfig(path=str(world.model))).parameters
    shutil.copy(world.model / "model.safetensors", folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="holds adapters of another model alone; merge them"):
        model_size(ModelConfig(path=str(folder)))

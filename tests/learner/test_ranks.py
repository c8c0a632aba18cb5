"""Two ranks make the same update as one: same weighted mean, same clipping, same metrics."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from tiny_vision import write_picture, write_vision_model

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.engines.chat import Chat
from rlanything.learner import model as learner_model
from rlanything.learner.deepspeed import Learner
from rlanything.learner.distributed import start_deepspeed
from rlanything.types import Sample, user

EVERY_CORE = True


def samples(seed):
    """Seven keys of unequal length: the two ranks get unequal numbers of micro-batches."""
    rng = np.random.default_rng(seed)
    made = []
    for key in range(7):
        n = int(rng.integers(8, 24))
        mask = np.r_[np.zeros(4), rng.uniform(0.1, 1, n - 4)]
        advantages = mask * rng.normal(size=n)
        made.append(Sample(rng.integers(3, 64, n), mask, advantages, -4 * np.sign(mask), key=str(key)))
    return made


def train(
    rank, world, port, model, zero_stage, out, load=None, save=None, steps=(0, 1), head_elements=None, made=samples
):
    """Update on the samples of `steps`, after loading from `load` and before saving to `save`, if given."""
    learner_model.HEAD_CHUNK_ELEMENTS = head_elements or learner_model.HEAD_CHUNK_ELEMENTS
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    settings = {"lr": 1e-2, "num_update": 1, "kl_beta": 0.1, "max_grad_norm": 0.1, "dtype": "float32"}
    config = LearnerConfig(**settings, micro_batch_tokens=32, zero_stage=zero_stage)
    start_deepspeed(None, joins=True)
    learner = Learner(ModelConfig(path=model), config, total_update=10)
    if load:
        learner.load(load)
    metrics = [learner.update(sample_sets(made(step))) for step in steps]
    if save:
        learner.save(save)
    weights = {name: tensor.clone() for name, tensor in learner.weights()}
    if rank == 0:
        torch.save({"metrics": metrics, "weights": weights}, out)
    learner.close()
    torch.distributed.destroy_process_group()


def run(world, model, zero_stage, out, *args):
    """`train` on `world` ranks; returns rank 0's metrics and weights."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.set_forkserver_preload(["rlanything.learner.deepspeed", "deepspeed"])  # ranks fork, and import nothing anew
    mp.start_processes(train, (world, port, model, zero_stage, out, *args), nprocs=world, start_method="forkserver")
    return torch.load(out)


@pytest.mark.integration
@pytest.mark.parametrize("zero_stage", [*(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 2)), 3])
def test_two_ranks_train_as_one(model_folder, tmp_path, zero_stage):
    one, two = (run(world, str(model_folder["qwen3"]), zero_stage, tmp_path / f"{world}.pt") for world in (1, 2))
    assert_alike(one, two)


class PicturesAndTexts:
    """Samples of which one has an image: of two ranks, one has none."""

    def __init__(self, model, picture):
        self.model, self.picture = str(model), picture

    def __call__(self, seed):
        chat = Chat(ModelConfig(path=self.model))
        made = []
        for i, images in enumerate(([self.picture], [], [])):
            prompt, response = chat.prompt([user(f"Find {i}{seed}.", images)]), chat.response_ids("take it")
            weights = np.r_[np.zeros(len(prompt.ids)), np.ones(len(response))]
            ids = np.asarray([*prompt.ids, *response])
            made.append(Sample(ids, weights, weights * (i - 1.0), -4 * weights, str(i), prompt.images))
        return made


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_a_rank_without_images_does_not_keep_the_others_waiting(tmp_path, zero_stage):
    model, picture = write_vision_model(tmp_path / "vision"), write_picture(tmp_path / "picture.png")
    made = PicturesAndTexts(model, picture)
    rest = (None, None, (0, 1), None, made)
    one, two = (run(world, str(model), zero_stage, tmp_path / f"{world}.pt", *rest) for world in (1, 2))
    assert_alike(one, two)


@pytest.mark.slow
@pytest.mark.integration
def test_ranks_with_unequal_numbers_of_chunks_gather_the_head_equally_often(large_vocabulary, tmp_path):
    """The head is large enough for ZeRO-3 to release it after use, and a chunk has two entries."""
    settings = str(large_vocabulary), 3
    one, two = (run(world, *settings, tmp_path / f"{world}.pt", None, None, (0, 1), 1 << 14) for world in (1, 2))
    assert_alike(one, two)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 3), (1, 2)),
        pytest.param((1, 0), (2, 3), marks=pytest.mark.slow),
        pytest.param((2, 1), (1, 3), marks=pytest.mark.slow),
        pytest.param((2, 2), (1, 0), marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_loads_at_another_number_of_ranks_and_zero_stage(model_folder, tmp_path, before, after):
    model, out, state = str(model_folder["qwen3"]), tmp_path / "out.pt", tmp_path / "state"
    uninterrupted = run(after[0], model, after[1], out, None, None, (0, 1, 2))
    run(before[0], model, before[1], out, None, state, (0, 1))
    resumed = run(after[0], model, after[1], out, state, None, (2,))
    assert_alike({**uninterrupted, "metrics": uninterrupted["metrics"][2:]}, resumed)


def assert_alike(one, two):
    """Metrics and weights are equal up to rounding, which depends on the order of sums."""
    for a, b in zip(one["metrics"], two["metrics"], strict=True):
        for name in ("loss", "policy_loss", "kl_reference", "entropy", "grad_norm", "lr"):
            assert b[name] == pytest.approx(a[name], rel=1e-3, abs=1e-6), name
    for name, tensor in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], tensor, rtol=0, atol=2e-3)


@pytest.mark.slow
@pytest.mark.integration
def test_a_learners_groups_wait_as_long_as_the_timeout_says(model_folder):
    code = (
        "import sys, torch\n"
        "from rlanything.config.schema import LearnerConfig, ModelConfig\n"
        "from rlanything.learner.deepspeed import Learner\n"
        "from rlanything.learner.distributed import start_deepspeed\n"
        "start_deepspeed(None, 77.0)\n"
        "model, config = ModelConfig(path=sys.argv[1]), LearnerConfig(zero_stage=2, dtype='float32')\n"
        "learner = Learner(model, config, total_update=1)\n"
        "for group in learner.engine.optimizer.real_dp_process_group, torch.distributed.new_group([0]):\n"
        "    group = group[0] if isinstance(group, list) else group\n"
        "    print(group._get_backend(torch.device('cpu')).options._timeout.total_seconds())\n"
    )
    command = [sys.executable, "-c", code, str(model_folder["qwen3"])]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert process.stdout.splitlines()[-2:] == ["77.0", "77.0"], process.stdout


@pytest.mark.integration
@pytest.mark.skipif(torch.cuda.is_available(), reason="the variables are of a machine with accelerators")
def test_variables_of_another_machine_are_overruled_or_named():
    code = (
        "import os\n"
        "from rlanything.errors import LearnerError\n"
        "from rlanything.learner.distributed import start_deepspeed\n"
        "try:\n"
        "    start_deepspeed(None)\n"
        "except LearnerError as error:\n"
        "    print(error)\n"
        "del os.environ['GLOO_SOCKET_IFNAME']\n"
        "print(start_deepspeed(None).get_accelerator().device_name())\n"
    )
    env = os.environ | {"DS_ACCELERATOR": "cuda", "GLOO_SOCKET_IFNAME": "ib77"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["GLOO_SOCKET_IFNAME=ib77: this machine has no such network; unset it", "cpu"], (
        done
    )


@pytest.mark.integration
def test_variables_that_another_launcher_left_do_not_make_a_learner_wait(model_folder):
    code = (
        "import sys\n"
        "from rlanything.config.schema import LearnerConfig, ModelConfig\n"
        "from rlanything.learner.deepspeed import Learner\n"
        "model, config = ModelConfig(path=sys.argv[1]), LearnerConfig(dtype='float32', kl_beta=0.0)\n"
        "learner = Learner(model, config, total_update=1)\n"
        "print(learner.rank, learner.world)\n"
    )
    left = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "10.255.255.1", "MASTER_PORT": "29500"}
    command = [sys.executable, "-c", code, str(model_folder["qwen3"])]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, env=os.environ | left)
    assert process.stdout.splitlines()[-1:] == ["0 1"], process.stderr

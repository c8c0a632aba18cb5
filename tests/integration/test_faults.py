"""What goes wrong in a real run: one clear message, exit code 1, nothing lost, no process left, and the run goes on."""

import shutil
import subprocess
from dataclasses import replace

import pytest
from replay import assert_trained_as_one_process
from runs_helpers import command, small_config

from rlanything.runs import checkpoint
from rlanything.runs.metrics import read_jsonl
from rlanything.train import train

pytestmark = pytest.mark.integration


@pytest.fixture
def started(world, tmp_path):
    """The configuration of a run of one step that has its checkpoint."""
    config = small_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step = 1
    config.training.policy.schedule = config.training.reward.schedule = "constant"  # whatever the number of steps
    train(config)
    config.experiment.total_step = 2
    return config


@pytest.fixture
def run_broken(forked, tmp_path):
    """A run in a process of its own, with `breakage` executed before it starts."""

    def run(config, breakage: str = "", overrides=()) -> subprocess.CompletedProcess:
        return forked.run([*command(config, tmp_path)[1:], *overrides], breakage)

    return run


def assert_clear(result: subprocess.CompletedProcess, *words: str) -> None:
    said = " ".join(result.stderr.split())
    assert result.returncode == 1 and all(w in said for w in words), result.stderr
    assert "Traceback" not in result.stderr


# No file may grow beyond 300 kB, so models (800 kB) cannot be written: like a quota that runs out.
FULL_DISK = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
"""


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_the_run_goes_on(started, tmp_path, run_broken):
    result = run_broken(started, FULL_DISK)
    assert_clear(result, "step_000002: could not be written", "run the same command again")
    root = tmp_path / "run/checkpoints"
    assert checkpoint.latest(root).name == "step_000001" and not list(root.glob(".*"))
    (root / ".step_000009.tmp").mkdir()  # of a process that was killed while it saved
    train(started)
    assert not list(root.glob(".*"))
    assert [r["step"] for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"] == [1, 2]
    assert_trained_as_one_process(started, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut", "corrupt"])
def test_a_broken_checkpoint_is_named_and_the_run_goes_on_from_the_one_before_it(started, tmp_path, run_broken, fault):
    train(started)
    started.experiment.total_step = 3
    newest = tmp_path / "run/checkpoints/step_000002"
    state = next((newest / "policy").glob("rank_*.safetensors"))
    whole = state.read_bytes()
    half = len(whole) // 2
    state.write_bytes(whole[:half] if fault == "cut" else whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :])
    assert_clear(run_broken(started), f"{newest}: the checkpoint cannot be read", "remove that folder")
    shutil.rmtree(newest)
    train(started)
    assert [r["step"] for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"] == [1, 2, 3]
    assert_trained_as_one_process(started, tmp_path / "run")


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_used(started, tmp_path, run_broken):
    started.training.policy.lr = started.training.reward.lr = 1e30
    assert_clear(run_broken(started), "is not finite, no step was taken", "lower the learning rate")
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000001"
    started.training.policy.lr = started.training.reward.lr = 1e-3
    train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000002"


DYING = """
from rlanything.engines.small.engine import TransformersEngine
real, calls = TransformersEngine._forward, []
def forward(self, batch):
    calls.append(1)
    if len(calls) > 3: {what}
    return real(self, batch)
TransformersEngine._forward = forward
"""


def test_an_engine_that_dies_ends_the_run_with_its_reason_and_the_run_goes_on(started, tmp_path, run_broken):
    result = run_broken(started, DYING.format(what="raise RuntimeError('device lost')"))
    assert_clear(result, "the engine died", "device lost")
    train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000002"


ENVIRONMENT = """
from rlanything.domains.alfworld.env import SimulatorEnv
async def step(self, action):
    raise OSError("the room is on fire")
SimulatorEnv.step = step
"""


def test_weights_that_differ_after_a_transfer_end_the_run(started, tmp_path, run_broken):
    breakage = "from rlanything.engines.small.engine import TransformersEngine as E; E.checksum = lambda self: 'other'"
    assert_clear(run_broken(started, breakage), "weights of the policy engine differ from the learner's")


def test_environments_that_raise_end_the_run_with_their_reason_and_the_run_goes_on(started, tmp_path, run_broken):
    result = run_broken(started, ENVIRONMENT)
    assert_clear(result, "episodes broke", "rollout.max_failure_rate=0.25", "env_error", "the room is on fire")
    train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000002"


HANGING = """
import asyncio
from rlanything.domains.alfworld.env import SimulatorEnv
real, calls = SimulatorEnv.step, []
async def step(self, action):
    calls.append(1)
    if len(calls) in {which}: await asyncio.sleep(1000)
    return await real(self, action)
SimulatorEnv.step = step
"""


def test_an_environment_that_hangs_is_played_anew_and_counted(started, tmp_path, run_broken):
    result = run_broken(started, HANGING.format(which=(2, 5)), overrides=["rollout.env_timeout_s=1"])
    assert result.returncode == 0, result.stderr
    [record] = [r for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train" and r["step"] == 2]
    assert record["retries"] == 2 and record["failures"] == 0


@pytest.mark.slow
def test_environments_that_all_hang_end_the_run_and_it_goes_on(started, tmp_path, run_broken):
    result = run_broken(started, HANGING.format(which="range(1000)"), overrides=["rollout.env_timeout_s=1"])
    assert_clear(result, "episodes broke", "env_timeout", "rollout.env_timeout_s=1")
    train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000002"


@pytest.mark.slow
def test_a_judges_process_that_dies_ends_the_run(started, tmp_path, run_broken):
    started.engine.reward.own_process = True
    kill = "import os\nfrom rlanything.engines import process as p\nreal = p.ProcessEngine._send\n"
    kill += "def send(self, loop, linger):\n    self._process.kill()\n    real(self, loop, linger)\n"
    result = run_broken(started, kill + "p.ProcessEngine._send = send\n")
    assert_clear(result, "the engine's process ended with exit code -9", "engine_reward.log")


@pytest.mark.slow
def test_an_engine_that_hangs_ends_the_run_and_says_where(started, tmp_path, run_broken):
    breakage = "import time\n" + DYING.format(what="time.sleep(1000)")
    overrides = [f"engine.{role}.step_timeout_s=2" for role in ("policy", "reward", "rewriter")]
    result = run_broken(started, breakage, overrides=overrides)
    assert_clear(result, "the engine hangs", "step_timeout_s=2", "goes on from the last checkpoint")
    assert "in forward" in (tmp_path / "run/logs/engine_policy.log").read_text()
    train(started)


def test_a_cut_data_file_is_named(started, world, tmp_path, run_broken):
    games = tmp_path / "games"
    shutil.copytree(world.games, games)
    whole = (games / "train.jsonl.xz").read_bytes()
    (games / "train.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    config = small_config(games, world.model, tmp_path, "cut")
    assert_clear(run_broken(config), str(games / "train.jsonl.xz"), "cut or corrupt")


def test_a_game_that_cannot_be_won_is_named(world, tmp_path, run_broken):
    from alfworld_games.files import write_packed
    from alfworld_games.generator import generate_games

    [game] = generate_games("train", 1, seed=5)
    data = game.data | {"pddl_problem": game.data["pddl_problem"].replace("(pickupable ", "(moveable ")}
    shutil.copytree(world.games, tmp_path / "games")
    write_packed(tmp_path / "games/train.jsonl.xz", [replace(game, data=data)])
    config = small_config(tmp_path / "games", world.model, tmp_path, "run")
    assert_clear(run_broken(config), game.path, "the planner finds no way to win it", "remove it")


@pytest.mark.parametrize("missing", ["tokenizer", "chat_template"])
def test_a_model_that_cannot_chat_is_named(started, world, tmp_path, missing, run_broken):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    for file in [*model.glob("tokenizer*"), *model.glob("special_tokens*"), *model.glob("chat_template*")]:
        if missing == "tokenizer" or "chat" in file.name:
            file.unlink()
    config = small_config(world.games, model, tmp_path, "other")
    words = "no tokenizer" if missing == "tokenizer" else "no chat template"
    assert_clear(run_broken(config), str(model), words)


def test_prompts_that_never_fit_the_context_stop_the_run(started, tmp_path, run_broken):
    result = run_broken(started, overrides=["engine.policy.max_model_len=32", "experiment.name=short"])
    assert_clear(result, "max_model_len=32")

"""What goes wrong in a real run: one clear message, exit code 1, nothing lost, no process left, and the run goes on."""

import resource
import shutil
import signal
import subprocess
import sys

import pytest
from runs_helpers import command, small_config

from rlanything.learner.deepspeed import LearnerError
from rlanything.runs import checkpoint
from rlanything.runs.metrics import read_jsonl
from rlanything.train import train

pytestmark = pytest.mark.integration


@pytest.fixture
def started(world, tmp_path):
    """The configuration of a run of one step that has its checkpoint."""
    config = small_config(world.games, world.model, tmp_path, "run")
    config.experiment.total_step = 1
    train(config)
    config.experiment.total_step = 2
    return config


def run_broken(config, folder, breakage: str, limit=lambda: None, overrides=()) -> subprocess.CompletedProcess:
    """A run in a process of its own, with `breakage` executed before it starts."""
    code = f"import sys\nsys.argv = sys.argv[1:]\n{breakage}\nexec(open(sys.argv[0]).read())\n"
    line = [*command(config, folder), *overrides]
    return subprocess.run(
        [sys.executable, "-c", code, *line[1:]],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        preexec_fn=limit,
    )


def assert_clear(result: subprocess.CompletedProcess, *words: str) -> None:
    said = " ".join(result.stderr.split())
    assert result.returncode == 1 and all(w in said for w in words), result.stderr
    assert "Traceback" not in result.stderr


def test_a_full_disk_while_saving_keeps_the_last_checkpoint_and_the_run_goes_on(started, tmp_path):
    def limit():
        # No file may grow beyond 300 kB, so models (800 kB) cannot be written: like a quota that runs out.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    result = run_broken(started, tmp_path, "", limit)
    assert_clear(result, "step_000002: the checkpoint could not be written", "run the same command again")
    root = tmp_path / "run/checkpoints"
    assert checkpoint.latest(root).name == "step_000001" and not list(root.glob(".*"))
    train(started)
    assert [r["step"] for r in read_jsonl(tmp_path / "run/metrics.jsonl") if r["phase"] == "train"] == [1, 2]


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_used(started, tmp_path):
    started.training.policy.lr = 1e30
    with pytest.raises(LearnerError, match=r"update \d+: the (loss|gradient) is not finite.*lower the learning rate"):
        train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000001"
    started.training.policy.lr = 1e-3
    train(started)
    assert checkpoint.latest(tmp_path / "run/checkpoints").name == "step_000002"


DYING = """
from rlanything.engines.transformers import TransformersEngine
real, calls = TransformersEngine._forward, []
def forward(self, batch):
    calls.append(1)
    if len(calls) > 3: {what}
    return real(self, batch)
TransformersEngine._forward = forward
"""


def test_an_engine_that_dies_ends_the_run_with_its_reason(started, tmp_path):
    result = run_broken(started, tmp_path, DYING.format(what="raise RuntimeError('device lost')"))
    assert_clear(result, "the engine died", "device lost")


def test_an_engine_that_hangs_ends_the_run_and_says_where(started, tmp_path):
    breakage = "import time\n" + DYING.format(what="time.sleep(1000)")
    overrides = [f"engine.{role}.step_timeout_s=2" for role in ("policy", "reward", "rewriter")]
    result = run_broken(started, tmp_path, breakage, overrides=overrides)
    assert_clear(result, "the engine hangs", "step_timeout_s=2", "goes on from the last checkpoint")
    assert "in forward" in (tmp_path / "run/logs/engine_policy.log").read_text()
    train(started)


def test_a_cut_data_file_is_named(started, world, tmp_path):
    games = tmp_path / "games"
    shutil.copytree(world.games, games)
    whole = (games / "train.jsonl.xz").read_bytes()
    (games / "train.jsonl.xz").write_bytes(whole[: len(whole) // 2])
    config = small_config(games, world.model, tmp_path, "cut")
    assert_clear(run_broken(config, tmp_path, ""), str(games / "train.jsonl.xz"), "cut or corrupt")


def test_a_game_that_cannot_be_won_is_named(world, tmp_path):
    from rlanything.domains.alfworld.export import write_packed
    from rlanything.domains.alfworld.generator import generate_games

    [game] = generate_games("train", 1, seed=5)
    data = game.data | {"pddl_problem": game.data["pddl_problem"].replace("(pickupable ", "(moveable ")}
    shutil.copytree(world.games, tmp_path / "games")
    write_packed(tmp_path / "games/train.jsonl.xz", [type(game)(game.path, data, game.traj, game.annotations)])
    config = small_config(tmp_path / "games", world.model, tmp_path, "run")
    assert_clear(run_broken(config, tmp_path, ""), game.path, "cannot be won", "remove it")


@pytest.mark.parametrize("missing", ["tokenizer", "chat_template"])
def test_a_model_that_cannot_chat_is_named(started, world, tmp_path, missing):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    for file in [*model.glob("tokenizer*"), *model.glob("special_tokens*"), *model.glob("chat_template*")]:
        if missing == "tokenizer" or "chat" in file.name:
            file.unlink()
    config = small_config(world.games, model, tmp_path, "other")
    words = "no tokenizer" if missing == "tokenizer" else "no chat template"
    assert_clear(run_broken(config, tmp_path, ""), str(model), words)


def test_prompts_that_never_fit_the_context_stop_the_run(started, tmp_path):
    result = run_broken(started, tmp_path, "", overrides=["engine.policy.max_model_len=32", "experiment.name=short"])
    assert_clear(result, "max_model_len=32")

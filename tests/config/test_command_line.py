"""One command line for all; what is wrong is said before anything heavy is imported."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from alfworld_games.files import write_packed
from alfworld_games.generator import generate_games

from rlanything.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]
QUICKSTART = f"config={ROOT}/configs/quickstart/alfworld"
# Runs a command line, and then says on stderr which heavy packages it imported.
WATCHED = """
import sys
from rlanything.__main__ import main
try:
    main(sys.argv[1:])
finally:
    print(*sorted({"torch", "ray", "vllm", "transformers", "deepspeed"} & set(sys.modules)), file=sys.stderr)
"""


def watched(*words: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """The finished command line, and the heavy packages that it imported."""
    line = [sys.executable, "-c", WATCHED, *words]
    result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    *said, imported = result.stderr.split("\n")[:-1]
    result.stderr = " ".join(" ".join(said).split())
    return result, imported.split()


MAIN = str(ROOT / "rlanything/__main__.py")


def run(*line: str, timeout: float = 60) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *line], capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT
    )


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",)])
def test_the_usage_names_every_command_at_once(words):
    started = time.perf_counter()
    result = run("-m", "rlanything", *words)
    assert time.perf_counter() - started < 1.0
    assert result.returncode == 0 and all(f"\n  {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", ["train", "eval", "sft", "plan"])
def test_the_help_of_a_command_tells_all_keys_and_imports_nothing_heavy(name):
    result, imported = watched(name, "--help")
    assert result.returncode == 0 and not imported and not result.stderr
    own = "measure_split:" if name == "sft" else "num_trial:"
    command = "train" if name == "plan" else name
    assert result.stdout.startswith(f"usage: rlanything {command} ") and f"\n  {own}" in result.stdout


def test_the_help_of_a_section_tells_that_alone():
    result, _ = watched("train", "--help", "algorithm")
    assert "step_weight:" in result.stdout and "num_trial:" not in result.stdout
    assert watched("plan", "eval", "--help", "algorithm")[0].stdout == result.stdout.replace(
        "train config", "eval config"
    )
    result, _ = watched("train", "--help", "algoritm")
    assert result.returncode == 1 and "there is no such section" in result.stderr and not result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trian", "config=x.yaml"), "command: found 'trian' (did you mean train?), expected one of train, eval, sft"),
        (("fly", "--help"), "command: found 'fly', expected one of train, eval, sft, sweep, plan, play"),
        (("train",), "expected exactly one config=FILE.yaml, found 0"),
        (("plan", "config=none.yaml"), "config=none.yaml: there is no such file"),
        (("plan", "eval", "config=none.yaml"), "config=none.yaml: there is no such file"),
        (("plan", "train", "config=none.yaml"), "config=none.yaml: there is no such file"),
        (("plan", "sft", "config=none.yaml"), "argument 'sft': expected key=value"),
        (
            ("train", f"{QUICKSTART}/loop.yaml", "rollout.num_trail=1"),
            "rollout.num_trail: unknown, did you mean num_tri",
        ),
        (("eval", f"{QUICKSTART}/loop.yaml", "dataset.options.show_action=all"), "did you mean show_actions?"),
        (
            ("train", f"{QUICKSTART}/loop.yaml", "dataset.domain=x"),
            "dataset.domain: found 'x', expected one of alfworld",
        ),
        (("sft", f"{QUICKSTART}/policy.yaml", "dataset.options.x=1"), "dataset.options.x: unknown"),
        (("sft", f"{QUICKSTART}/loop.yaml"), "role: found nothing"),
    ],
)
def test_a_bad_line_is_one_message_before_anything_heavy_is_imported(words, message):
    result, imported = watched(*words)
    assert result.returncode == 1 and message in result.stderr and "Traceback" not in result.stderr
    assert result.stderr.startswith("error: ") and not imported


@pytest.mark.parametrize(
    ("script", "config", "message"),
    [
        ("alfworld_rl.py", "configs/coding_rl.yaml", "found coding, expected alfworld; run `rlanything train` for it"),
        (
            "coding_eval.py",
            "configs/alfworld_eval.yaml",
            "found alfworld, expected coding; run `rlanything eval` for it",
        ),
    ],
)
def test_a_script_refuses_a_configuration_of_another_domain(script, config, message):
    result = run(script, f"config={config}")
    assert result.returncode == 1 and message in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "script",
    ["alfworld_rl.py", "alfworld_eval.py", "coding_rl.py", "coding_eval.py", "reasoning_rl.py", "reasoning_eval.py"],
)
def test_a_script_helps_as_its_command_does(script):
    result = run(script, "--help", "rollout")
    command = "train" if script.endswith("_rl.py") else "eval"
    assert result.returncode == 0 and result.stdout.startswith(f"usage: rlanything {command} ")


@pytest.mark.integration
def test_plan_is_the_dry_run_of_a_training_or_of_an_evaluation(tmp_path, forked):
    for split in ("train", "eval_in_distribution"):
        write_packed(tmp_path / f"{split}.jsonl.xz", generate_games(split, 3, seed=3))
    words = [
        f"config={ROOT}/configs/alfworld_rl.yaml",
        f"dataset.path={tmp_path}",
        f"experiment.output_dir={tmp_path}/runs",
    ]
    plan = forked.run([MAIN, "plan", *words])
    assert plan.returncode == 0, plan.stderr
    assert plan.stdout == forked.run([MAIN, "train", *words, "dry_run=true"]).stdout
    assert "policy updates" in plan.stdout and "nothing was started" in plan.stdout and not (tmp_path / "runs").exists()
    assert "show_actions: all" in plan.stdout and "backend: simulator" in plan.stdout, "options are resolved too"
    words = [f"config={ROOT}/configs/alfworld_eval.yaml", *words[1:], "evaluation.splits=[train]"]
    plan = forked.run([MAIN, "plan", "eval", *words])
    assert plan.returncode == 0 and "train: 3 tasks x 4 episodes" in plan.stdout and "policy updates" not in plan.stdout


def test_play_takes_its_own_words():
    words = ["config=examples/sums.yaml", "split=eval"]
    played = subprocess.run(
        [sys.executable, "-m", "rlanything", "play", *words, "task=eval/3"],
        input="quit\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert played.returncode == 0 and "eval/3: " in played.stdout and "Not solved after 0 turns" in played.stdout
    lost = run("-m", "rlanything", "play", *words, "task=999")
    assert lost.returncode == 1 and "task=999: split eval has no such task" in lost.stderr

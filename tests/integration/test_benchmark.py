"""`alfworld_eval.py`: a table, a parquet of episodes, and a second call that plays nothing anew."""

import os
import shutil

import pytest
from runs_helpers import command, small_config

from rlanything.config.schema import ModelConfig
from rlanything.domains.registry import make_domain
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.errors import ConfigError, RunError
from rlanything.evaluation import benchmark as module
from rlanything.evaluation.benchmark import table_rows
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import part_path, parts, read_rows

pytestmark = pytest.mark.integration


def test_the_command_judges_where_a_reward_model_is_named_and_repeats_itself(world, tmp_path, forked):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.model.rewriter.path = ""
    line = command(config, tmp_path, "alfworld_eval.py")
    records = []
    for _ in range(2):
        result = forked.run(line[1:])
        assert result.returncode == 0 and "eval_in_distribution" in result.stdout, result.stderr
        found = read_jsonl(tmp_path / "eval/metrics.jsonl")
        records.append(
            [{k: v for k, v in record.items() if not k.startswith(("env_s_", "phase/"))} for record in found]
        )
    assert records[0] == records[1] and len(records[0]) == 2
    first = records[0][0]
    assert first["rm_process_accuracy"] is not None and first["response_tokens"] > 0
    row = table_rows("seen", {key: value for key, value in first.items() if isinstance(value, int | float)})[0]
    assert {"RM process", "RM outcome"} <= row.keys() and "tests right" not in row
    kinds = [v for k, v in first.items() if k.startswith("success_rate/")]
    assert kinds and all(0 <= v <= 1 for v in kinds)


RAW = """\
Household. {{ first }}
{% for step in steps %}
{{ step.action }}: {{ step.observation }}
{% endfor %}
{% for action in actions %}
{{ loop.index0 }}) {{ action }}
{% endfor %}
Choice: \\boxed{"""


def test_a_checkpoint_without_a_chat_template_is_measured_in_the_prompts_of_its_training(world, tmp_path, forked):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts/policy.raw.jinja").write_text(RAW)
    (tmp_path / "prompts/judge.raw.jinja").write_text("{{ task }} {{ steps[-1].response }} Score: ")
    shutil.copytree(world.model, tmp_path / "model", ignore=shutil.ignore_patterns("chat_template*"))
    config = small_config(world.games, tmp_path / "model", tmp_path, "eval")
    config.model.rewriter.path, config.dataset.prompt = "", str(tmp_path / "prompts")
    config.dataset.options, config.rollout.history = {"first_number": 0, "show_actions": "all"}, "paper"
    result = forked.run(command(config, tmp_path, "alfworld_eval.py")[1:])
    assert result.returncode == 0 and "eval_in_distribution" in result.stdout, result.stderr
    chat = Chat(ModelConfig(path=str(tmp_path / "model")))
    [file] = (tmp_path / "eval/evaluations").glob("*eval_in_distribution*")
    for row in read_rows(file):
        assert len(row["turns"]) > 1
        for i, turn in enumerate(row["turns"]):
            text = chat.tokenizer.decode(turn["prompt"]["ids"])
            assert text.startswith("Household. ") and text.endswith("Choice: \\boxed{") and "0) " in text
            assert all(f": {before['observation']}" in text for before in row["turns"][:i])
        assert all(chat.tokenizer.decode(j["prompt"]["ids"]).endswith("Score: ") for j in row["judgements"])
    assert (tmp_path / "eval/prompts/policy.raw.jinja").read_text() == RAW


def test_a_model_without_a_chat_template_is_refused_by_the_dry_run_of_an_evaluation(world, tmp_path):
    shutil.copytree(world.model, tmp_path / "model", ignore=shutil.ignore_patterns("chat_template*"))
    config = small_config(world.games, tmp_path / "model", tmp_path, "eval")
    config.dry_run = True
    with pytest.raises(ChatError, match="no chat template"):
        module.benchmark(config)


def test_a_dry_run_of_an_evaluation_starts_nothing(world, tmp_path, capsys):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.dry_run = True
    module.benchmark(config)
    said = capsys.readouterr().out
    assert "eval_in_distribution: 2 tasks x 1 episodes" in said and "nothing was started" in said
    config.experiment.num_device, config.engine.policy.kind, config.engine.reward.kind = 2, "vllm", "vllm"
    module.benchmark(config)
    plan = capsys.readouterr().out.split("Plan: ")[1]
    assert plan.startswith("1 node(s), 2 accelerators") and "learner" not in plan and "of 80 GiB" in plan
    config.engine.policy.gpu_memory_utilization = 1e-9
    with pytest.raises(ConfigError, match=r"engine.policy.gpu_memory_utilization=1e-09 of 80 GiB is 0.0"):
        module.benchmark(config)
    assert not (tmp_path / "eval").exists()


def test_an_evaluation_of_no_split_is_refused(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.evaluation.splits = []
    with pytest.raises(ConfigError, match="nothing to measure"):
        module.benchmark(config)


def test_an_evaluation_that_was_cut_off_goes_on_where_it_stopped(world, tmp_path, monkeypatch, capsys):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.evaluation.num_task, config.rollout.max_concurrent = 0, 2
    monkeypatch.setattr(module, "PART_EPISODES", 2)
    played = []
    real = module.play

    async def cut_off_at_4(batch, *args):
        if len(played) == 4:
            raise RuntimeError("cut off")
        played.append(len(batch.tasks))
        return await real(batch, *args)

    monkeypatch.setattr(module, "play", cut_off_at_4)
    with pytest.raises(RuntimeError, match="cut off"):
        module.benchmark(config)
    assert played == [2, 2, 2, 2], "3 parts are the first split"
    played.clear()
    monkeypatch.setattr(module, "PART_EPISODES", 1)  # another version of the program may choose other parts
    module.benchmark(config)
    assert played == [1, 1, 1, 1]
    rows = read_rows(tmp_path / "eval/evaluations/step_000000_eval_out_of_distribution.parquet")
    assert len(rows) == 6 and all(row["turns"] for row in rows)
    records = [r for r in read_jsonl(tmp_path / "eval/metrics.jsonl") if r["split"] == "eval_out_of_distribution"]
    assert records[-1]["episodes"] == 6 and 0 <= records[-1]["success_low"] <= records[-1]["success_high"] <= 1
    assert "eval_in_distribution" in capsys.readouterr().out


def test_a_part_of_which_too_much_broke_is_played_again(world, tmp_path, monkeypatch):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.evaluation.splits = ["eval_in_distribution"]
    real = module.play

    async def refused(batch, collect, on_end):
        await collect(batch, on_end)
        raise RunError("too many broke")

    monkeypatch.setattr(module, "play", refused)
    with pytest.raises(RunError, match="too many broke"):
        module.benchmark(config)
    played = []

    async def counted(batch, *args):
        played.extend(task.id for task in batch.tasks)
        return await real(batch, *args)

    monkeypatch.setattr(module, "play", counted)
    module.benchmark(config)
    rows = read_rows(tmp_path / "eval/evaluations/step_000000_eval_in_distribution.parquet")
    assert sorted(played) == sorted({row["task_id"] for row in rows}) and len(rows) == len(played)


def test_parts_of_two_calls_end_in_one_folder(tmp_path):
    for folder, number in (("done", 0), ("begun", 4), ("begun", 7)):
        (tmp_path / folder).mkdir(exist_ok=True)
        part_path(tmp_path / folder, number).write_text(folder)
    module.move_parts(tmp_path / "begun", tmp_path / "done")
    assert [path.read_text() for path in parts(tmp_path / "done")] == ["done", "begun", "begun"]
    assert not (tmp_path / "begun").exists()
    module.move_parts(tmp_path / "begun", tmp_path / "done")  # nothing was left to play
    assert len(parts(tmp_path / "done")) == 3


def test_parts_of_another_data_set_are_refused(world, tmp_path):
    config = small_config(world.games, world.model, tmp_path, "eval")
    config.evaluation.splits = ["eval_in_distribution"]
    module.benchmark(config)
    domain = make_domain(config)
    folder = tmp_path / "eval/evaluations/step_000000_eval_in_distribution.parquet"
    with pytest.raises(RunError, match="part_000000.parquet: holds episodes of tasks that the split has no longer"):
        module.read_parts(folder, domain.tasks("train"), domain.same_answer)


def test_an_evaluation_whose_sink_has_no_key_ends_before_anything_is_made(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    config = small_config(tmp_path, tmp_path, tmp_path, "eval")
    config.experiment.num_device, config.experiment.sinks = 0, ["wandb"]
    with pytest.raises(RunError, match="finds no key"):
        module.benchmark(config)
    assert not (tmp_path / "eval").exists()

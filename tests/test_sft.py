"""The warm start: bad conversations are named, equal inputs are not trained again, other games are."""

import json
import resource
import shutil
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from chat_families import FAMILIES, write_tokenizer

from rlanything.config.checks import check_sft
from rlanything.config.load import to_yaml
from rlanything.config.schema import DatasetConfig, EngineConfig, LearnerConfig, ModelConfig
from rlanything.config.sft import SftConfig
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.errors import ConfigError, TaskError
from rlanything.runs.progress import Progress
from rlanything.sft import encode, read_conversations, warm_start


@pytest.fixture
def config(world, tmp_path):
    """Two updates of a policy."""
    games = tmp_path / "games"
    shutil.copytree(world.games, games)
    return SftConfig(
        role="policy",
        model=ModelConfig(path=str(world.model)),
        output=str(tmp_path / "trained"),
        dataset=DatasetConfig(path=str(games), prompt="compact", options={"show_actions": "here"}),
        num_measure=2,
        batch=4,
        max_update=2,
        engine=EngineConfig(kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=8, kv_cache_gb=0.05),
        training=LearnerConfig(lr=1e-3, dtype="float32", micro_batch_tokens=2048),
        num_thread=1,
    )


def test_equal_inputs_are_not_trained_again_and_other_games_are(config, capsys):
    warm_start(config, Progress())
    written = (Path(config.output) / "model.safetensors").read_bytes()
    warm_start(config, Progress())
    assert "update 2" in (said := capsys.readouterr().out) and "is up to date" in said
    train = Path(config.dataset.path) / "train.jsonl.xz"
    shutil.copy(train.with_name("eval_in_distribution.jsonl.xz"), train)
    warm_start(config, Progress())
    assert "up to date" not in capsys.readouterr().out
    assert (Path(config.output) / "model.safetensors").read_bytes() != written


def test_conversations_of_a_file_are_learned(config, world, tmp_path):
    messages = [{"role": "user", "content": "a mug"}, {"role": "assistant", "content": "take mug 1"}]
    config.data = str(tmp_path / "said.jsonl")
    Path(config.data).write_text(json.dumps({"messages": messages}) + "\n")
    [sample] = [encode(Chat(config.model), c) for c in islice(read_conversations(Path(config.data)), 1)]
    chat = Chat(config.model)
    assert sample.ids.tolist() == [*chat.prompt(messages[:1]).ids, *chat.response_ids("take mug 1")]
    warm_start(config, Progress())
    assert (Path(config.output) / "sft.json").is_file()


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["user", "assistant", "user", "user", "assistant"], "line 2: expected user and assistant in turns"),
        (["assistant", "user"], "line 2: expected user and assistant in turns"),
        (["system"], "found system"),
        (["user", "tool", "assistant"], "found user, tool, assistant"),
        (["user", "assistant", "tool"], "found user, assistant, tool"),
        (["user", "robot"], "found user, robot"),
        ([], "found no message"),
    ],
)
def test_a_conversation_that_does_not_alternate_is_named(tmp_path, roles, message):
    good = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    bad = [{"role": role, "content": "x"} for role in roles]
    file = tmp_path / "said.jsonl"
    file.write_text("\n".join(json.dumps({"messages": m}) for m in (good, bad)) + "\n")
    with pytest.raises(ConfigError, match=message):
        next(read_conversations(file))


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"content": None}, r"message 2 \(assistant\): content: found None, expected a text or parts"),
        ({"content": 3}, "content: found 3, expected a text or parts"),
        ({"content": ["x"]}, r"content: found \['x'\], expected a text or parts"),
        ({"content": "", "tool_calls": ["look"]}, "tool_calls: found 'look', expected .*function"),
        (
            {"content": "", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            'tool_calls: found .*"arguments": {...}',
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_named(tmp_path, message, fault):
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", **message}]}))
    with pytest.raises(ConfigError, match=f"data={file}, line 1: .*{fault}"):
        next(read_conversations(file))


def test_a_user_message_with_tool_calls_is_named(tmp_path):
    bad = {"role": "user", "content": "x", "tool_calls": [{"function": {"arguments": {}}}]}
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": [bad, {"role": "assistant", "content": "y"}]}))
    with pytest.raises(ConfigError, match="line 1: message 1 .user.: tool_calls: only an assistant message"):
        next(read_conversations(file))


def test_conversations_with_tools_train_what_the_template_shows(tmp_path):
    chat = Chat(ModelConfig(path=str(write_tokenizer(FAMILIES["qwen3"], tmp_path / "model"))))
    function = {"name": "look", "description": ".", "parameters": {"type": "object", "properties": {}}}
    calls = [{"type": "function", "function": {"name": "look", "arguments": {"at": at}}} for at in ("mug", "cup")]
    messages = [
        {"role": "system", "content": "You act in a room."},
        {"role": "user", "content": "Find a mug."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "a mug"},
        {"role": "tool", "content": "a cup"},
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": "the mug"},
    ]
    tools = [{"type": "function", "function": function}]
    (tmp_path / "said.jsonl").write_text(json.dumps({"messages": messages, "tools": tools}))
    conversation = next(read_conversations(tmp_path / "said.jsonl"))
    sample = encode(chat, conversation)
    rendered = chat.prompt([*messages, {"role": "user", "content": "x"}], tools).ids
    assert sample.ids.tolist() == rendered[: len(sample.ids)]
    trained = chat.tokenizer.decode(sample.ids[sample.weights > 0])
    assert trained.count("<|im_end|>") == 2 and trained.count("<tool_call>") == 2 and "mug" in trained
    assert "a cup" not in trained and "Which" not in trained


def test_a_conversation_that_the_template_cannot_render_is_named_by_its_line(config, tmp_path):
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]
    (tmp_path / "said.jsonl").write_text(json.dumps({"messages": messages}))
    conversation = next(read_conversations(tmp_path / "said.jsonl"))
    with pytest.raises(
        ChatError, match=f"data={tmp_path}/said.jsonl, line 1: model {config.model.path}: .* tool calls"
    ):
        encode(Chat(config.model), conversation)


def test_broken_and_missing_files_of_conversations_are_named(config, tmp_path):
    config.data = "none.jsonl"
    with pytest.raises(ConfigError, match="data=none.jsonl: there is no such file"):
        check_sft(config)
    (tmp_path / "cut.jsonl").write_text('{"messages": [')
    with pytest.raises(ConfigError, match="line 1: expected"):
        next(read_conversations(tmp_path / "cut.jsonl"))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ConfigError, match="holds no conversation"):
        next(read_conversations(tmp_path / "empty.jsonl"))


def test_games_that_cannot_be_demonstrated_in_so_few_turns_are_no_endless_wait(config):
    config.max_interaction_step = 1
    with pytest.raises(TaskError, match="1 turns an episode are too few"):
        warm_start(config, Progress())


def test_a_full_disk_is_one_clear_message(config, tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # the model takes 800 kB

    file = tmp_path / "sft.yaml"
    file.write_text(to_yaml(config))
    command = [sys.executable, "-m", "rlanything", "sft", f"config={file}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, preexec_fn=limit)
    said = " ".join(result.stderr.split())
    assert result.returncode == 1 and "trained: could not be written" in said and "Traceback" not in said
    assert not list(tmp_path.glob("trained*"))

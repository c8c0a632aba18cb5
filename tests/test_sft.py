"""The warm start: bad conversations are named, equal inputs are not trained again, other games are."""

import asyncio
import importlib
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from rlanything.config.checks import check_sft
from rlanything.config.load import to_yaml
from rlanything.config.schema import DatasetConfig, EngineConfig, LearnerConfig, ModelConfig
from rlanything.config.sft import SftConfig
from rlanything.conversations import encode_file
from rlanything.domains.registry import make_domain
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import start_chat_model
from rlanything.engines.template import ChatError
from rlanything.errors import ConfigError, RunError, TaskError
from rlanything.labelled import endless, labelled_episodes
from rlanything.runs.folder import locked
from rlanything.runs.progress import Progress
from rlanything.sft import digest, loop_config, warm_start


def test_code_beside_a_domain_in_its_package_determines_the_models_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "words_domain").mkdir()
    for name in ("__init__", "judging"):
        (tmp_path / f"words_domain/{name}.py").write_text("")
    (tmp_path / "words_domain/words.py").write_text(
        "class Words:\n    def data_files(self, split):\n        return []\n"
    )
    (tmp_path / "lone_words.py").write_text("from words_domain.words import Words as W\nclass Words(W):\n    pass\n")
    config = SftConfig(role="policy", model=ModelConfig(path="m"), output="o", dataset=DatasetConfig(), num_thread=1)

    def digests():
        domains = [importlib.import_module(name).Words() for name in ("words_domain.words", "lone_words")]
        return [digest(config, domain) for domain in domains]

    before = digests()
    (tmp_path / "other.py").write_text("")
    assert digests() == before
    (tmp_path / "words_domain/judging.py").write_text("WORD = 1\n")
    assert not {*before} & {*digests()}, "the second one is derived from a class of the package"


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


@pytest.mark.parametrize("place", ["/proc/x/model", "/sys/x/model"])
def test_an_output_that_cannot_be_made_is_named(config, place):
    with pytest.raises(RunError, match=f"output={place}: /.*/x (cannot be made|may not be written).*choose another"):
        warm_start(config.model_copy(update={"output": place}), Progress())


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


def test_an_output_that_another_process_is_making_is_refused_and_left_alone(config, tmp_path):
    scratch = tmp_path / ".trained.sft"
    with locked(tmp_path / ".trained.lock", "the first one"):  # flock holds between two files of one process, too
        (scratch / "images").mkdir(parents=True)
        with pytest.raises(RunError, match="output=.*trained: another process is making it; wait for it or choose"):
            warm_start(config, Progress())
        assert (scratch / "images").is_dir(), "the first one's screenshots"
    warm_start(config, Progress())
    assert not scratch.exists() and (Path(config.output) / "model.safetensors").is_file()


def test_an_output_that_holds_something_else_is_refused_before_anything_is_lost(config, tmp_path):
    output = Path(config.output)
    output.mkdir()
    (output / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="output=.*trained: holds files that no warm start made.*choose another"):
        warm_start(config, Progress())
    assert (output / "notes.txt").read_text() == "mine"
    (output / "notes.txt").unlink()
    for path, message in ((tmp_path / "a.txt", "is a file"), (tmp_path / "a.txt/x", "a.txt is a file")):
        (tmp_path / "a.txt").write_text("mine")
        with pytest.raises(RunError, match=message):
            warm_start(config.model_copy(update={"output": str(path)}), Progress())
    shutil.copytree(config.model.path, tmp_path / "start")
    (tmp_path / "start/sft.json").write_text("{}")  # a model that another warm start made
    own = config.model_copy(update={"output": str(tmp_path / "start")})
    own.model = ModelConfig(path=str(tmp_path / "start"))
    with pytest.raises(RunError, match="holds the model that the warm start begins with"):
        warm_start(own, Progress())


def test_conversations_of_a_file_are_learned(config, world, tmp_path):
    messages = [{"role": "user", "content": "a mug"}, {"role": "assistant", "content": "take mug 1"}]
    config.data = str(tmp_path / "said.jsonl")
    Path(config.data).write_text(json.dumps({"messages": messages}) + "\n")
    chat = Chat(config.model)
    [sample] = encode_file(Path(config.data), chat)
    assert sample.ids.tolist() == [*chat.prompt(messages[:1]).ids, *chat.response_ids("take mug 1")]
    warm_start(config, Progress())
    assert (Path(config.output) / "sft.json").is_file()


def test_conversations_that_are_too_long_are_left_out_and_counted(config, capsys):
    said = [{"role": "user", "content": "a mug"}, {"role": "assistant", "content": "take mug 1"}]
    rows = [said, [*said, {"role": "user", "content": "and a plate " * 20}, said[1]]]
    config.data = str(Path(config.output).parent / "said.jsonl")
    Path(config.data).write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    config.max_tokens = 30
    warm_start(config, Progress())
    assert "1 conversations of more than 30 tokens are left out" in (shown := capsys.readouterr().out)
    assert " 1 conversations of" in shown
    config.max_tokens = 2
    with pytest.raises(ConfigError, match="max_tokens=2: each of the 2 conversations"):
        warm_start(config, Progress())


def test_conversations_that_are_held_out_are_not_learned_and_their_loss_is_told(config, capsys):
    config.data = str(Path(config.output).parent / "said.jsonl")
    answers = ["take mug 1"] * 3 + ["go to desk 1"]  # seed 0 holds the last one out
    rows = [[{"role": "user", "content": "a mug"}, {"role": "assistant", "content": answer}] for answer in answers]
    Path(config.data).write_text("\n".join(json.dumps({"messages": row}) for row in rows))
    config.num_held_out, config.max_update, config.measure_every, config.num_measure = 1, 20, 4, 1
    warm_start(config, Progress())
    told = re.findall(r"loss ([\d.]+) \(held out ([\d.]+)\)", capsys.readouterr().out)
    learned, held_out = zip(*((float(a), float(b)) for a, b in told), strict=True)
    assert len(told) == 5 and learned[-1] < 0.5 * learned[0] and held_out[-1] > 2 * learned[-1], told
    config.num_held_out = 4
    with pytest.raises(ConfigError, match="num_held_out=4: that leaves none of the 4 conversations"):
        warm_start(config, Progress())
    config.data = ""
    with pytest.raises(ConfigError, match="num_held_out"):
        check_sft(config)


def test_missing_files_of_conversations_are_named(config):
    config.data = "none.jsonl"
    with pytest.raises(ConfigError, match="data=none.jsonl: there is no such file"):
        check_sft(config)


def test_a_conversation_that_the_template_cannot_render_is_found_before_the_model_is_loaded(config, tmp_path):
    good = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    calls = [{"type": "function", "function": {"name": "look", "arguments": {}}}]
    bad = [good[0], {"role": "assistant", "tool_calls": calls}]
    config.data = str(tmp_path / "said.jsonl")
    Path(config.data).write_text("\n".join(json.dumps({"messages": m}) for m in [good] * 40 + [bad]))
    with pytest.raises(ChatError, match=f"data={config.data}, line 41: model {config.model.path}: .* tool calls"):
        warm_start(config, Progress())
    assert not list((tmp_path / "logs").glob("*engine*"))


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


def test_a_reward_model_learns_from_the_steps_that_a_policy_took(config, capsys):
    config.role, config.policy = "reward", config.model
    config.num_episode, config.max_interaction_step, config.max_response_tokens = 6, 4, 16
    warm_start(config, Progress())
    said = " ".join(capsys.readouterr().out.split())
    assert "a policy's 6 episodes of split train have 24 labelled steps" in said
    assert "a policy's 2 episodes of split eval_in_distribution have 8 labelled steps" in said
    assert "agreement with the truth" in said


def test_judgements_of_a_policy_s_steps_give_the_domain_s_label_and_reason(config, tmp_path):
    loop = loop_config(config)
    with closing(make_domain(loop)) as domain:
        policy = start_chat_model(config.model, config.engine, 0, tmp_path / "log", Chat(config.model))
        with closing(policy.engine):
            episodes = asyncio.run(labelled_episodes(domain, policy, loop, "train", 50, Progress()))
        assert len(episodes) == 72  # 24 games, three times each
        for conversation in episodes[0]:
            said = conversation.messages[-1]["content"]
            assert domain.judging.parse(said)[0] in (1, -1) and not said.startswith("\\boxed"), said
            assert conversation.trained == [False] * (len(conversation.messages) - 1) + [True]
        steps = islice(endless(episodes, seed=0), 5 * sum(map(len, episodes)))
        assert {id(c) for c in steps} == {id(c) for episode in episodes for c in episode}


def test_only_a_reward_model_has_a_policy_to_judge(config):
    config.policy = config.model
    with pytest.raises(ConfigError, match="only a reward model"):
        check_sft(config)

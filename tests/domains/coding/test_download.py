"""A fetched set of problems is checked before it is written, and errors say what to do."""

import datetime
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coding_world import rows

from rlanything.conversations import read_conversations
from rlanything.domains.coding.problems import check_row
from rlanything.domains.reasoning.problems import check_row as check_problem
from rlanything.domains.rows import read_checked
from rlanything.errors import TaskError

SCRIPT = Path(__file__).parents[3] / "data/download.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("download", SCRIPT)
    module = sys.modules["download"] = importlib.util.module_from_spec(spec)  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["download"]


def test_a_fetched_set_is_checked_and_written_as_the_domain_reads_it(script, tmp_path, monkeypatch, capsys):
    fetched = tmp_path / "hub.json"
    fetched.write_text(json.dumps([*rows(), {"question": "?"}]))
    monkeypatch.setattr(script, "fetch", lambda dataset: fetched)
    script.download("CodeContests_train", tmp_path / "data", skip_bad=True)
    written = tmp_path / "data/CodeContests_train.json"
    assert len(read_checked(written, "question", check_row, skip_bad=False)[0]) == 6
    assert "6 rows; 1 rows left out" in capsys.readouterr().out


def test_sets_of_problems_with_answers_and_of_conversations_are_checked_each_in_its_way(
    script, tmp_path, monkeypatch, capsys
):
    asked = [{"role": "user", "content": "6 * 7?"}]
    published = pa.table(
        {
            "data_source": ["dapo", "code"],
            "prompt": [asked, asked],
            "reward_model": [{"ground_truth": "42"}, {"ground_truth": json.dumps({"inputs": ["1"], "outputs": ["1"]})}],
        }
    )
    pq.write_table(published, tmp_path / "hub.parquet")
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.parquet")
    script.download("Open-AgentRL-30K", tmp_path, skip_bad=False)
    problems, _ = read_checked(tmp_path / "Open-AgentRL-30K.json", "question", check_problem, skip_bad=False)
    assert [payload.get("answer") for _, payload in problems] == ["42", None] and "2 rows" in capsys.readouterr().out
    talk = [*asked, {"role": "assistant", "content": "\\boxed{42}"}]
    pq.write_table(pa.table({"messages": [talk]}), tmp_path / "hub.parquet")
    script.download("Open-AgentRL-SFT-3K", tmp_path, skip_bad=False)
    assert read_conversations(tmp_path / "Open-AgentRL-SFT-3K.json")[0].messages == talk
    pq.write_table(pa.table({"messages": [talk[1:]]}), tmp_path / "hub.parquet")
    with pytest.raises(TaskError, match="hub.parquet, row 0"):
        script.download("Open-AgentRL-SFT-3K", tmp_path / "other", skip_bad=False)
    assert not (tmp_path / "other").exists()
    pq.write_table(pa.table({"messages": [talk[1:], talk]}), tmp_path / "hub.parquet")
    script.download("Open-AgentRL-SFT-3K", tmp_path, skip_bad=True)
    assert "1 rows; 1 rows left out, the first: row 0: expected user and assistant" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "files"),
    [("AIME", ["aime2024", "aime2025"]), ("GPQA-Diamond", ["gpqa_diamond"]), ("LiveCodeBench-v6", ["lcb_v6"])],
)
def test_the_name_of_a_benchmark_fetches_its_sets(script, tmp_path, monkeypatch, name, files):
    (tmp_path / "hub.json").write_text(json.dumps([{"problem": "6 * 7?", "answer": "42"}]))
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.json")
    monkeypatch.setattr(sys, "argv", ["download.py", "--dataset", name, "--out", str(tmp_path / "data")])
    script.main()
    assert sorted(path.stem for path in (tmp_path / "data").iterdir()) == files


def test_bad_rows_of_a_fetched_set_are_refused_and_nothing_is_written(script, tmp_path, monkeypatch):
    (tmp_path / "hub.json").write_text(json.dumps([{"question": "?"}]))
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.json")
    monkeypatch.setattr(sys, "argv", ["download.py", "--dataset", "LiveCodeBench", "--out", str(tmp_path / "data")])
    with pytest.raises(script.DownloadError, match="row 0: .*pass --skip-bad"):
        script.main()
    assert not (tmp_path / "data").exists()


CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": None}}}
TALK = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "2"},
]
TOOLS = [  # Parquet gives each the properties of both, one of them null
    {"type": "function", "function": {"name": name, "parameters": {"properties": {field: {"type": "string"}}}}}
    for name, field in (("add", "a"), ("look", "at"))
]


def test_fetched_conversations_are_those_that_the_parquet_file_itself_gives(script, tmp_path, monkeypatch):
    written = [{**CALL, "function": {"name": "add", "arguments": json.dumps(CALL["function"]["arguments"])}}]
    row = {"messages": TALK, "tools": TOOLS, "made": datetime.date(2025, 1, 1)}
    as_texts = {"messages": json.dumps(TALK), "tools": json.dumps(TOOLS), "image": None}
    as_openai = {"messages": [TALK[0], {**TALK[1], "tool_calls": written}, *TALK[2:]], "tools": None}
    for i, each in enumerate((row, as_texts, as_openai)):
        fetched = tmp_path / f"hub{i}.parquet"
        pq.write_table(pa.Table.from_pylist([each]), fetched)
        monkeypatch.setattr(script, "fetch", lambda dataset, fetched=fetched: fetched)
        script.download("Open-AgentRL-SFT-3K", tmp_path, skip_bad=False)
        [direct], [found] = read_conversations(fetched), read_conversations(tmp_path / "Open-AgentRL-SFT-3K.json")
        assert (found.messages, found.tools, found.trained) == (direct.messages, direct.tools, direct.trained)
    pq.write_table(pa.Table.from_pylist([row]), fetched)
    script.download("Open-AgentRL-SFT-3K", tmp_path, skip_bad=False)
    assert read_conversations(tmp_path / "Open-AgentRL-SFT-3K.json")[0].tools == TOOLS


def test_a_switch_of_thinking_is_left_out_of_fetched_conversations(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.parquet")
    for switch in (True, False):
        pq.write_table(pa.table({"messages": [TALK], "enable_thinking": [switch]}), tmp_path / "hub.parquet")
        script.download("Open-AgentRL-SFT-3K", tmp_path, skip_bad=False)
        assert json.loads((tmp_path / "Open-AgentRL-SFT-3K.json").read_text())[0].keys() == {"messages", "tools"}


def test_dates_and_bytes_of_columns_that_are_not_read_stop_nothing(script, tmp_path, monkeypatch):
    day = datetime.date(2025, 1, 1)
    row = {"problem": "6 * 7?", "answer": "42", "contest_date": day, "source": b"x", "extra_info": {"at": day}}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "hub.parquet")
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.parquet")
    script.download("aime2025", tmp_path, skip_bad=False)
    files = ("hub.parquet", "aime2025.json")
    direct, found = (read_checked(tmp_path / name, "question", check_problem, False) for name in files)
    assert found == direct and found[0][0][1]["answer"] == "42"


@pytest.mark.parametrize("dataset", ["Open-AgentRL-30K", "Open-AgentRL-SFT-3K", "LiveCodeBench"])
def test_a_parquet_file_without_the_columns_is_refused_by_name(script, tmp_path, monkeypatch, dataset):
    pq.write_table(pa.table({"text": ["6 * 7 = 42"], "label": [1]}), tmp_path / "hub.parquet")
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.parquet")
    wanted = "messages" if "SFT" in dataset else "question"
    for skip_bad, words in ((False, "hub.parquet, row 0: .*"), (True, "hub.parquet: holds no .*row 0: .*")):
        with pytest.raises(TaskError, match=words + wanted):
            script.download(dataset, tmp_path / "data", skip_bad=skip_bad)
    assert not (tmp_path / "data").exists()


def refused(kind, cause):
    """An error as huggingface_hub words it."""
    text = f"401 Client Error. (Request ID: Root=1-a;b)\n\n{cause} for url: https://huggingface.co/api/x."
    return kind(text, response=SimpleNamespace(headers={}, request=None))


def fail(error):
    def raises(*args, **kwargs):
        raise error

    return raises


@pytest.mark.parametrize(
    ("dataset", "error", "words", "absent"),
    [
        (
            "gpqa_diamond",
            refused(huggingface_hub.errors.GatedRepoError, "Cannot access gated repo"),
            "gated data set; accept its terms at http[^ ]*/datasets/Gen-Verse/Open-AgentRL-Eval .*set HF_TOKEN",
            "network",
        ),
        (
            "aime2024",
            refused(huggingface_hub.errors.RepositoryNotFoundError, "Repository Not Found"),
            "has no data set Gen-Verse/Open-AgentRL-Eval, or hides it .*/datasets/Gen-Verse/Open-AgentRL.*HF_TOKEN",
            "network",
        ),
        ("aime2024", OSError("[Errno -2] Name or service not known"), "not known.*With no network here", "gated"),
        (
            "aime2024",
            refused(huggingface_hub.errors.HfHubHTTPError, "Access to this resource is disabled"),
            "401 Client Error.*Access to this resource is disabled",
            "gated",
        ),
    ],
)
def test_what_the_hub_refuses_is_said_once_with_the_remedy(script, monkeypatch, dataset, error, words, absent):
    files = ["gpqa/x.parquet", "aime2024/x.parquet"]
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(list_repo_files=lambda *_, **__: files))
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail(error))
    with pytest.raises(script.DownloadError, match=f"^{dataset}: .*{words}") as caught:
        script.fetch(dataset)
    assert absent not in str(caught.value) and "\n" not in str(caught.value)


def test_without_network_it_fails_at_once_and_says_what_to_do(tmp_path):
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    line = [sys.executable, str(SCRIPT), "--dataset", "CodeContests_train", "--out", str(tmp_path)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert "HF_ENDPOINT names a mirror" in result.stderr and not list(tmp_path.glob("*.json*"))

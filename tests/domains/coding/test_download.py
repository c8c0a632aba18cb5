"""A fetched set of problems is checked before it is written, and errors say what to do."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

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


def test_bad_rows_of_a_fetched_set_are_refused_and_nothing_is_written(script, tmp_path, monkeypatch):
    (tmp_path / "hub.json").write_text(json.dumps([{"question": "?"}]))
    monkeypatch.setattr(script, "fetch", lambda dataset: tmp_path / "hub.json")
    monkeypatch.setattr(sys, "argv", ["download.py", "--dataset", "LiveCodeBench", "--out", str(tmp_path / "data")])
    with pytest.raises(script.DownloadError, match="row 0: .*pass --skip-bad"):
        script.main()
    assert not (tmp_path / "data").exists()


def test_without_network_it_fails_at_once_and_says_what_to_do(tmp_path):
    env = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
    line = [sys.executable, str(SCRIPT), "--dataset", "CodeContests_train", "--out", str(tmp_path)]
    result = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, env=env)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert "HF_ENDPOINT names a mirror" in result.stderr and not list(tmp_path.glob("*.json*"))

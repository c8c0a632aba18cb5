"""A fetched set of problems is checked before it is written, and errors say what to do."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from coding_world import rows

from rlanything.domains.coding.problems import read_problems

SCRIPT = Path(__file__).parents[3] / "data/download.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("download", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_fetched_set_is_checked_and_written_as_the_domain_reads_it(script, tmp_path, monkeypatch, capsys):
    fetched = tmp_path / "hub.json"
    fetched.write_text(json.dumps([*rows(), {"question": "?"}]))
    monkeypatch.setattr(script, "fetch", lambda dataset: fetched)
    script.download("CodeContests_train", tmp_path / "data", skip_bad=True)
    assert len(read_problems(tmp_path / "data/CodeContests_train.json", skip_bad=False)[0]) == 6
    assert "6 problems with 4 to 4 tests each; 1 rows left out" in capsys.readouterr().out


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

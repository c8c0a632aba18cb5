"""The commands of README and docs/: each runs, or says what it needs, and names files, keys and targets that exist.

A block of commands has a mark on the line above it. `<!-- runs -->` and `<!-- runs in minutes -->` are executed, the
second by a slow test. `<!-- needs: ... -->` says what a test's machine lacks; of these only what they name is checked.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

from rlanything.config.load import load_as
from rlanything.config.schema import Config
from rlanything.config.sft import SftConfig
from rlanything.config.sweep import SweepConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "data/README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
PROGRAMS = ("rlanything ", "python ", "python3 ", "make ", "pip ", "srun ", "source ", "device=")
SCHEMAS = {"train": Config, "eval": Config, "plan": Config, "play": Config, "sft": SftConfig, "sweep": SweepConfig}
PLACEHOLDER = re.compile(r"\.\.\.|<|[A-Z]{3,}|\$")  # words with these stand for something of the reader's


def blocks() -> list[tuple[str, str, list[str]]]:
    """(page and number, mark, commands) of each block that holds commands."""
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8"))):
            lines = match["text"].replace("\\\n", " ").splitlines()
            commands = [line.strip() for line in lines if line.startswith(PROGRAMS) or re.match(r"scripts/\S", line)]
            if commands and match["language"] in ("", "bash"):
                found.append((f"{page.relative_to(ROOT)} block {number}", match["mark"] or "", commands))
    return found


def inline() -> list[tuple[str, str, list[str]]]:
    """The commands in the running text and the tables of each page."""
    found = []
    for page in PAGES:
        spans = re.findall(r"`([^`\n]+)`", BLOCK.sub("", page.read_text(encoding="utf-8")))
        commands = [span for span in spans if span.startswith(PROGRAMS) and "'" not in span]
        if commands:
            found.append((f"{page.relative_to(ROOT)} text", "", commands))
    return found


BLOCKS = blocks()
NAMED = BLOCKS + inline()


@pytest.mark.parametrize(("where", "mark", "commands"), BLOCKS, ids=[where for where, _, _ in BLOCKS])
def test_a_block_of_commands_runs_or_says_what_it_needs(where, mark, commands):
    assert mark in ("runs", "runs in minutes") or mark.startswith("needs: "), f"{where}: no mark above {commands[0]}"


@pytest.mark.parametrize(("where", "mark", "commands"), NAMED, ids=[where for where, _, _ in NAMED])
def test_commands_name_files_keys_and_targets_that_exist(where, mark, commands):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for command in commands:
        words_of_all = shlex.split(command, comments=True)
        for words in [list(group) for is_and, group in groupby(words_of_all, lambda word: word == "&&") if not is_and]:
            for word in words:
                name = word.partition("=")[2] if word.startswith("config=") else word
                is_ours = re.match(
                    r"(scripts|tests|benchmarks|examples|configs|experiments|data|constraints)/\S+\.\w+$", name
                )
                if (is_ours or re.match(r"\w+\.py$", name)) and name != "main.py" and not PLACEHOLDER.search(name):
                    assert (ROOT / name).exists(), f"{where}: {name} does not exist"
            if words[:1] == ["make"]:
                assert all(word in targets for word in words[1:] if "=" not in word), f"{where}: {words}"
            assert_keys_exist(where, words)


def assert_keys_exist(where: str, words: list[str]) -> None:
    """Read the configuration that a command would, without the words that stand for something of the reader's."""
    configs = [i for i, word in enumerate(words) if word.startswith("config=")]
    if not configs or PLACEHOLDER.search(words[configs[0]]):
        return
    verb = next((word for word in words[: configs[0]] if word in SCHEMAS), "train")
    overrides = [w for w in words[configs[0] :] if re.match(r"[\w.]+=", w) and not PLACEHOLDER.search(w)]
    own = ("task=", "policy=") if verb in ("play", "eval") else ()
    overrides = [w for w in overrides if not w.startswith(own)] if own else overrides
    os.chdir(ROOT)
    load_as(SCHEMAS[verb], overrides)


def executed() -> list[object]:
    marks = {"runs": (), "runs in minutes": pytest.mark.slow}
    return [
        pytest.param(where, commands, id=where, marks=marks[mark]) for where, mark, commands in BLOCKS if mark in marks
    ]


@pytest.mark.parametrize(("where", "commands"), executed())
def test_commands_that_run_anywhere_run(where, commands, tmp_path):
    ignored = shutil.ignore_patterns(".*", "cache", "runs", "site", "shared", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, tmp_path / "project", ignore=ignored)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path / "project")}
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path / "project", env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{where}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

"""The words after the launcher's name."""

from __future__ import annotations

import pytest

from rlanything.launch.__main__ import script_of
from rlanything.launch.membership import LaunchError


@pytest.mark.parametrize("name", ["train", "eval"])
def test_a_command_of_rlanything_runs_a_domain_of_ones_own_on_several_nodes(name):
    assert script_of([name, "config=a.yaml"]) == ["-m", "rlanything", name, "config=a.yaml"]


def test_a_file_of_python_runs_as_it_is():
    assert script_of(["alfworld_rl.py", "config=a.yaml"]) == ["alfworld_rl.py", "config=a.yaml"]


@pytest.mark.parametrize("words", [[], ["config=a.yaml"], ["play", "config=a.yaml"]])
def test_words_that_name_nothing_to_run_are_refused_with_the_usage(words):
    with pytest.raises(LaunchError, match=r"usage: .*train\|eval\|SCRIPT.py"):
        script_of(words)

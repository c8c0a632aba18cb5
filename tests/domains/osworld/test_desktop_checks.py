"""Checks and evaluators of real desktops: what they say of files and answers that an agent may have made."""

from __future__ import annotations

import asyncio
import io
import math
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from desktop_world import ORACLE, SHARED, needs_oracle, needs_tasks, options
from openpyxl import Workbook

from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.evaluators import check_evaluators
from rlanything.domains.osworld.desktops.oracle import Oracle
from rlanything.domains.osworld.desktops.oracle_server import said
from rlanything.domains.osworld.desktops.tasks import Verifier, read_family, read_splits
from rlanything.domains.osworld.desktops.verify import LARGEST_UNPACKED, LARGEST_WORKBOOK, share
from rlanything.errors import TaskError


@pytest.mark.parametrize("told", [b"no JSON", b"[1]", b"9" * 2**16, b"\xff", b"[" * 10**5, b""])
def test_what_is_no_answer_of_a_request_says_nothing(told):
    assert said(told) == {}


@pytest.mark.parametrize("score", [math.nan, 2, -1, "1.0", None, [1]])
def test_a_score_that_is_none_is_a_fault(score):
    oracle = Oracle(options())

    async def answered(*given):
        return {"score": score}

    oracle._call = answered
    verifier = Verifier(instruction="x", evaluator={"func": "exact_match"})
    with pytest.raises(DesktopFault, match="expected a number from 0 to 1"):
        asyncio.run(oracle.evaluate(verifier, SimpleNamespace(id="f"), None, (1, 1)))


def held(content: bytes, check: dict) -> float:
    """The score of a check on a file with this content."""

    async def download(path):
        return content

    return asyncio.run(share(SimpleNamespace(download=download), [{"path": "~/f", **check}]))


@pytest.mark.parametrize(
    ("content", "value", "wanted"),
    [(b"1", 1, 1), (b"1.0", 1, 1), (b"true", 1, 0), (b"1", True, 0), (b"true", True, 1), (b"null", False, 0)],
)
def test_a_json_check_tells_a_number_from_a_truth_value(content, value, wanted):
    assert held(b'{"k": ' + content + b"}", {"kind": "json", "key": "k", "value": value}) == wanted


def test_a_workbook_that_unpacks_to_more_than_a_desktop_may_hold_is_not_read():
    book, content = Workbook(), io.BytesIO()
    book.active["B2"] = 5
    book.save(content)
    check = {"kind": "cell", "cell": "B2", "value": 5}
    assert held(content.getvalue(), check) == 1.0
    with ZipFile(content, "a", ZIP_DEFLATED) as packed:
        packed.writestr("xl/more.xml", bytes(LARGEST_UNPACKED))
    assert len(content.getvalue()) < LARGEST_WORKBOOK and held(content.getvalue(), check) == 0.0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"func": "exact_mach"}, "mine: verifier a: func: .* no 'exact_mach'; did you mean exact_match"),
        ({"func": ["exact_match", "zzzz"]}, "no 'zzzz'$"),
        ({"func": "exact_match", "result": {"type": "vm_fil"}}, "result.type: .*did you mean get_vm_file"),
        ({"func": "exact_match", "expected": [{}, {"path": "x"}]}, "expected.type: .* no 'get_None'"),
    ],
)
def test_evaluator_that_osworld_does_not_have_is_named_before_a_run(tmp_path, wrong, told):
    for name, holds in (("metrics", "from .general import exact_match\n"), ("getters", "def get_vm_file(): ...\n")):
        folder = tmp_path / "lib/python3.11/site-packages/desktop_env/evaluators" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(holds)
    right = {"func": "exact_match", "result": {"type": "vm_file"}, "expected": {}}
    verifiers = {"b": {"instruction": "x", "evaluator": right}, "a": {"instruction": "x", "evaluator": right | wrong}}
    family = read_family({"id": "mine", "verifiers": verifiers}, "x")
    with pytest.raises(TaskError, match=told):
        check_evaluators([family], tmp_path)
    del verifiers["a"]
    check_evaluators([read_family({"id": "mine", "verifiers": verifiers}, "x")], tmp_path)


@needs_oracle
@needs_tasks
def test_every_published_task_asks_for_evaluators_that_there_are():
    families, _ = read_splits(SHARED)
    check_evaluators(families.values(), Path(ORACLE))
    assert len(families) == 592

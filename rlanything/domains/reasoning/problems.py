"""Problems with a short answer: rows of data files, as `data/README.md` describes them, become payloads of tasks."""

import re
from collections.abc import Mapping
from typing import Any

from rlanything.domains.coding.fields import is_missing, read_task_id
from rlanything.domains.coding.problems import check_row as check_program
from rlanything.domains.reasoning.answers import CHOICES, LONGEST, boxed, normal
from rlanything.domains.reasoning.program_tests import holds_objects, tests_of
from rlanything.domains.rows import BadProblem, check_characters

MAX_WORDS = 4  # of a worked solution that is an answer by itself
_WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2,}")
_LETTER = re.compile(r"\(([A-J])\)")  # of a choice that the question names

# Names of the published sets, in the order in which they are tried.
QUESTIONS = ("question", "problem", "Problem", "Question", "prompt")
ANSWERS = ("answer", "Answer", "final_answer", "ground_truth", "reward_model", "solution")
KINDS = ("kind", "data_source", "source", "domain", "ability")


def check_row(row: object) -> dict[str, Any]:
    """Check a row and return it as a task's payload. Raises BadProblem.

    The payload has `question`, `answer`, `kind`, and if the row has them `choices`, `cells`, `outputs` and `task_id`. A
    problem whose answer is a program has what `coding.problems.check_row` gives in the place of an answer.
    """
    if not isinstance(row, Mapping):
        raise BadProblem(f"expected an object, found {type(row).__name__}")
    row = {name: value for name, value in row.items() if not is_missing(value)}
    kinds = (row[name].strip() for name in KINDS if isinstance(row.get(name), str))
    kind = next(filter(None, kinds), "problem")
    question = _question(row)
    if (tested := tests_of(row)) is not None:
        return check_program({**tested, "question": question, "kind": kind})
    truth = _truth(row)
    payload: dict[str, Any] = {"question": question, "answer": str(truth), "kind": kind}
    if choices := row.get("choices"):
        payload |= _choices(choices, truth)
    if "cells" in row or "outputs" in row:
        payload |= _solution(row.get("cells"), row.get("outputs"))
    if name := read_task_id(row):
        payload["task_id"] = name
    check_characters(payload)
    return payload


def is_choice(payload: Mapping[str, Any]) -> bool:
    """True if the answer is the letter of a choice."""
    return "choices" in payload or payload.get("answer") in tuple(CHOICES)


_TEXT = re.compile(r"\A\\(?:text\w*|mbox)\s*\{([^{}]*)\}\Z")


def is_program(payload: Mapping[str, Any]) -> bool:
    """True if the answer is a program."""
    return "tests" in payload


def _question(row: Mapping[str, Any]) -> str:
    for name in QUESTIONS:
        value = row.get(name)
        if isinstance(value, list):  # a conversation: its last message asks
            last = value[-1] if value else None
            value = last.get("content") if isinstance(last, Mapping) and last.get("role") == "user" else None
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise BadProblem(f"question: none of the fields {', '.join(QUESTIONS)} holds a text that asks; {_has(row)}")


def _truth(row: Mapping[str, Any]) -> str | int:
    """The answer of the first field that holds one. Raises BadProblem if there is none, or none that can be used."""
    is_choice, long = bool(row.get("choices")), ""
    for name in ANSWERS:
        value = row.get(name)
        if isinstance(value, Mapping):
            value = value.get("ground_truth")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if (
            value is None
            or value == []
            or isinstance(value, Mapping)
            or (isinstance(value, str) and holds_objects(value))
        ):
            continue
        if isinstance(value, float):  # pandas makes floats of integers if one is missing
            value = int(value) if is_choice and value.is_integer() else repr(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if not isinstance(value, str):
            raise BadProblem(f"{name}: found {value!r:.80}, expected one answer, as a text or a number")
        if normal(final := _final(value)):
            if name == "solution" and len(_WORD.findall(final)) > MAX_WORDS:
                long = "; solution has no box or ####, expected a short answer"
            elif is_choice or len(normal(final)) <= LONGEST:
                letter = _LETTER.fullmatch(final.strip())
                return letter[1] if letter and not is_choice else final.strip()
            else:
                long = f"; {name} has {len(final)} characters, expected a short answer"
    raise BadProblem(
        f"answer: none of the fields {', '.join(ANSWERS)} holds an answer, or tests of a program{long}; {_has(row)}"
    )


def _has(row: Mapping[str, Any]) -> str:
    return f"the row has {', '.join(map(str, row)) or 'no values'}"


def _final(text: str) -> str:
    """The answer at the end of a worked solution: after #### as in GSM8K, or in the last box as in MATH."""
    if "####" in text:
        return text.rpartition("####")[2]
    box = boxed(text)  # as it is written: LaTeX may be part of the answer, unless it only marks a text
    return _TEXT.sub(r"\1", box) if box and normal(box) else text


def _solution(cells: object, outputs: object) -> dict[str, Any]:
    """The calls of a solution, and what they show."""
    for texts in (cells, outputs):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise BadProblem("cells, outputs: expected two lists of texts, the calls of a solution and what they show")
    if len(cells) != len(outputs):  # type: ignore[arg-type]
        raise BadProblem(f"cells, outputs: found {len(cells)} and {len(outputs)} texts, expected as many")  # type: ignore[arg-type]
    return {"cells": cells, "outputs": outputs}


def _choices(choices: object, truth: str | int) -> dict[str, Any]:
    """The choices, and the letter of the right one. A whole number is the place of a choice, counted from 0."""
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(CHOICES) or len(set(map(str, choices))) < 2:
        raise BadProblem(f"choices: found {choices!r:.80}, expected a list of 2 to {len(CHOICES)} different texts")
    texts = [str(text).strip() for text in choices]
    bare = re.fullmatch(r"\(?([A-J])\)?\.?", normal(str(truth)))
    meant = {texts.index(str(truth))} if str(truth) in texts else {CHOICES.index(bare[1])} if bare else set()
    if isinstance(truth, int) and 0 <= truth < len(texts):
        meant.add(truth)
    if len(meant) != 1 or max(meant) >= len(texts):
        raise BadProblem(f"answer: found {truth!r:.80}, expected one of the choices, its letter, or its place from 0")
    return {"choices": texts, "answer": CHOICES[meant.pop()]}

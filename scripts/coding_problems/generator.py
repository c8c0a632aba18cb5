"""Generates problems: chains of operations, each with a statement in words, a solution, and tests that it passes.

A row keeps its chain, which demonstrations vary.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Sequence
from typing import Any

from rlanything.domains.coding.problems import Check
from rlanything.errors import TaskError

from .operations import ANSWER, LETTERS, NUMBERS, OPENINGS, OPERATIONS, READ, WORD, Operation

Chain = list[list[Any]]
"""[name of an operation, {parameter: value}] for each operation, the answer last."""

TIME_LIMIT_S = 1.0
NUM_TEST = 6
LONGEST = 2  # most operations of a problem, counting its answer
MAX_FRUITLESS = 5000  # draws in a row without a new problem, after which none is expected
MAX_TRY = 200  # inputs drawn for a problem's tests, before its chain is dropped


def operation_of(link: Sequence[Any]) -> Operation:
    """Return the operation of one link of a chain."""
    return OPERATIONS[link[0]]


def draw_chain(rng: random.Random, length: int) -> Chain:
    """Draw `length` operations that fit together, the last of which is an answer."""
    kind = rng.choice((NUMBERS, NUMBERS, WORD))  # twice as many operations take numbers
    between = [o for o in OPERATIONS.values() if o.takes == kind and o.gives == kind]
    last = [o for o in OPERATIONS.values() if o.takes == kind and o.gives == ANSWER]
    chosen = [*rng.sample(between, length - 1), rng.choice(last)]
    return [[operation.name, operation.draw(rng)] for operation in chosen]


def statement(chain: Chain, rng: random.Random) -> str:
    """Word the chain as a problem's statement."""
    parts = [rng.choice(operation_of(link).phrases).format(**link[1]) for link in chain]
    opening = rng.choice(OPENINGS[operation_of(chain[0]).takes])
    return f"{opening}: {', '.join(parts[:-1])}{', then ' if len(parts) > 1 else ''}{parts[-1]}."


def solution(chain: Chain) -> str:
    """Write the program that carries out the chain."""
    lines = [READ[operation_of(chain[0]).takes], *(operation_of(link).code.format(**link[1]) for link in chain)]
    return "\n".join(lines)


def draw_input(kind: str, rng: random.Random, small: bool = False) -> str:
    """Draw an input line of a kind (NUMBERS or WORD). A small one is easy to work out by hand."""
    if kind == WORD:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 3 if small else 8)))
    highest = 5 if small else rng.choice((9, 20, 99))
    lowest = 0 if small or rng.random() < 0.7 else -highest
    return " ".join(str(rng.randint(lowest, highest)) for _ in range(rng.randint(2, 3 if small else 8)))


def answer(program: str, line: str) -> str | None:
    """Run a generated solution in this process and return what it prints, or None if it fails on the input."""
    printed, lines = io.StringIO(), iter([line])
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {"input": lambda: next(lines)})
    except (ValueError, IndexError):  # an operation left nothing, which has no largest and no first
        return None
    return printed.getvalue().rstrip("\n")


def draw_tests(chain: Chain, rng: random.Random, num: int, small: bool = False) -> list[Check] | None:
    """Draw `num` tests with different inputs, and outputs that are not all equal.

    Returns None if too few inputs have an answer.
    """
    program, kind = solution(chain), operation_of(chain[0]).takes
    outputs: dict[str, str] = {}
    for _ in range(MAX_TRY):
        line = draw_input(kind, rng, small)
        output = answer(program, line)
        if output:
            outputs[line] = output
        newest = list(outputs.items())[-num:]
        if len(newest) == num and (num == 1 or len({b for _, b in newest}) > 1):
            return [Check(f"{a}\n", f"{b}\n") for a, b in newest]
    return None


def make_row(chain: Chain, rng: random.Random) -> dict[str, Any] | None:
    """Make the row of a data file for a chain, or None if the chain yields no tests."""
    tests = draw_tests(chain, rng, NUM_TEST)
    if tests is None:
        return None
    return {
        "question": statement(chain, rng),
        "test_method": "stdio",
        "test_time_limit": TIME_LIMIT_S,
        "test_input": [test.input for test in tests],
        "test_output": [test.output for test in tests],
        "kind": f"{len(chain)} operations" if len(chain) > 1 else "1 operation",
        "solution": solution(chain),
        "chain": chain,
    }


def generate_problems(
    num: int, seed: int, without: Sequence[dict[str, Any]] = (), length: int = 0
) -> list[dict[str, Any]]:
    """Generate `num` rows of `length` operations (0: up to LONGEST), all different and none of them in `without`.

    Two rows are the same if their chains are, parameters included. There are some 1800 chains of up to LONGEST
    operations; TaskError is raised if they run out.
    """
    rng = random.Random(seed)
    seen = {solution(row["chain"]) for row in without}
    rows: list[dict[str, Any]] = []
    fruitless = 0
    while len(rows) < num:
        fruitless += 1
        if fruitless > MAX_FRUITLESS:
            raise TaskError(f"only about {len(seen)} different problems of this kind exist; ask for fewer")
        chain = draw_chain(rng, length or rng.randint(1, LONGEST))
        if solution(chain) not in seen and (row := make_row(chain, rng)) is not None:
            seen.add(row["solution"])
            rows.append(row)
            fruitless = 0
    return rows

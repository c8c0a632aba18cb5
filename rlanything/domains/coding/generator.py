"""New problems: chains of operations with statements in several wordings, solutions, and tests that these prove.

A chain is a list of [operation, parameters]. Rows carry theirs as `chain`, from which demonstrations for the rewriter
make variants: one operation more, or one less.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Sequence
from typing import Any

from rlanything.domains.coding.operations import ANSWER, LETTERS, NUMBERS, OPENINGS, OPERATIONS, READ, WORD, Operation
from rlanything.domains.coding.problems import Check
from rlanything.errors import TaskError

Chain = list[list[Any]]  # [operation's name, {parameter: value}] of each
TIME_LIMIT_S = 1.0
NUM_TEST = 6
LONGEST = 2  # operations of a problem, its answer among them
MAX_FRUITLESS = 5000  # draws without a new problem
MAX_TRY = 200  # inputs that are drawn for a problem's tests; a chain for which few work is given up


def draw_chain(rng: random.Random, length: int) -> Chain:
    """`length` operations that fit together, the last one an answer."""
    kind = rng.choice((NUMBERS, NUMBERS, WORD))  # there are twice as many of them
    between = [o for o in OPERATIONS.values() if o.takes == kind and o.gives == kind]
    last = [o for o in OPERATIONS.values() if o.takes == kind and o.gives == ANSWER]
    chosen = [*rng.sample(between, length - 1), rng.choice(last)]
    return [[operation.name, operation.draw(rng)] for operation in chosen]


def statement(chain: Chain, rng: random.Random) -> str:
    """The chain in words."""
    parts = [rng.choice(_operation(link).phrases).format(**link[1]) for link in chain]
    opening = rng.choice(OPENINGS[_operation(chain[0]).takes])
    return f"{opening}: {', '.join(parts[:-1])}{', then ' if len(parts) > 1 else ''}{parts[-1]}."


def solution(chain: Chain) -> str:
    """A program that solves it."""
    lines = [READ[_operation(chain[0]).takes], *(_operation(link).code.format(**link[1]) for link in chain)]
    return "\n".join(lines)


def draw_input(kind: str, rng: random.Random, small: bool = False) -> str:
    """A line that a problem of this kind reads; a small one is easily worked out by hand."""
    if kind == WORD:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 3 if small else 8)))
    highest = 5 if small else rng.choice((9, 20, 99))
    lowest = 0 if small or rng.random() < 0.7 else -highest
    return " ".join(str(rng.randint(lowest, highest)) for _ in range(rng.randint(2, 3 if small else 8)))


def answer(program: str, given: str) -> str | None:
    """What one of our own solutions prints; None where it fails on the input."""
    printed, lines = io.StringIO(), iter([given])
    try:
        with contextlib.redirect_stdout(printed):
            exec(program, {"input": lambda: next(lines)})
    except (ValueError, IndexError):  # of nothing that is left there is no largest and no first
        return None
    return printed.getvalue().rstrip("\n")


def worked_out(chain: Chain, given: str) -> str:
    """What is between input and answer, after each operation: what a model that cannot run programs has to think."""
    program, steps = READ[_operation(chain[0]).takes], []
    for link in chain[:-1]:
        program += f"\n{_operation(link).code.format(**link[1])}"
        shown = "print(*x)" if _operation(link).takes == NUMBERS else "print(x)"
        steps.append(answer(f"{program}\n{shown}", given) or "nothing")
    return " -> ".join(steps)


def draw_tests(chain: Chain, rng: random.Random, num: int, small: bool = False) -> list[Check] | None:
    """Different inputs with their answers, which are not all alike; None where the chain rarely has an answer."""
    program, kind = solution(chain), _operation(chain[0]).takes
    found: dict[str, str] = {}
    for _ in range(MAX_TRY):
        given = draw_input(kind, rng, small)
        said = answer(program, given)
        if said:
            found[given] = said
        newest = list(found.items())[-num:]
        if len(newest) == num and (num == 1 or len({b for _, b in newest}) > 1):
            return [Check(f"{a}\n", f"{b}\n") for a, b in newest]
    return None


def make_row(chain: Chain, rng: random.Random) -> dict[str, Any] | None:
    """A problem as a data file has it, with its chain; None where no good tests can be had."""
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
    """`num` problems of `length` operations (0: up to LONGEST), whose chains, parameters included, occur neither twice
    nor among those of `without`. Raises TaskError where there are no more: up to LONGEST there are some 1800 chains."""
    rng = random.Random(seed)
    seen = {solution(row["chain"]) for row in without}
    rows: list[dict[str, Any]] = []
    fruitless = 0  # draws since the last new one
    while len(rows) < num:
        fruitless += 1
        if fruitless > MAX_FRUITLESS:
            raise TaskError(f"no more than about {len(seen)} such problems can be generated: ask for fewer")
        chain = draw_chain(rng, length or rng.randint(1, LONGEST))
        if solution(chain) not in seen and (row := make_row(chain, rng)) is not None:
            seen.add(row["solution"])
            rows.append(row)
            fruitless = 0
    return rows


def vary(chain: Chain, harder: bool, rng: random.Random) -> Chain:
    """One operation more, or one less; other parameters, or another answer, where there is only the answer."""
    last = _operation(chain[-1])
    if harder:
        between = [o for o in OPERATIONS.values() if o.takes == last.takes == o.gives]
        added = rng.choice([o for o in between if o.name not in {link[0] for link in chain}])
        place = rng.randrange(len(chain))
        return [*chain[:place], [added.name, added.draw(rng)], *chain[place:]]
    if len(chain) > 1:
        gone = rng.randrange(len(chain) - 1)
        return [*chain[:gone], *chain[gone + 1 :]]
    answers = [o for o in OPERATIONS.values() if o.takes == last.takes and o.gives == ANSWER and o.name != last.name]
    chosen = rng.choice(answers)
    return [[chosen.name, chosen.draw(rng)]]


def _operation(link: Sequence[Any]) -> Operation:
    return OPERATIONS[link[0]]

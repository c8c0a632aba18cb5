"""Arithmetic in words, with the calls that solve it: sums for the head, products for one call, branches for more.

A wording has numbers drawn into it. Its cells compute the answer, so what they show is proven by execution. Some
questions begin with a sentence that does not matter, with a number of its own.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EASY, ONE, TWO = "easy", "one call", "two calls"
THREE, FOUR, FIVE, SIX, SEVEN = "three calls", "four calls", "five calls", "six calls", "seven calls"
SHARES = {EASY: 1.0, ONE: 1.0, TWO: 1.0}  # of the kinds, relative to one another
MAX_FRUITLESS = 20_000  # draws without a new problem, after which there is none left
ASIDES = ("", "", "", "The shop opened {x} years ago. ", "It is {x} degrees outside. ", "Page {x} says: ")


@dataclass(frozen=True, kw_only=True)
class Family:
    """Problems that differ in their numbers. Wordings and cells are format strings of these."""

    kind: str
    ranges: tuple[tuple[int, int], ...]
    """First and last number of a, b, ..."""
    wordings: tuple[str, ...]
    cells: tuple[str, ...]
    otherwise: str = ""
    """The second cell if the first one shows an odd number; empty if there is one way only."""
    num_branch: int = 1
    """How often the second cell, or its alternative, follows what was shown last."""

    @property
    def program(self) -> str:
        """One cell that prints the answer alone."""
        if not self.otherwise:
            return self.cells[0]
        if self.num_branch > 1:
            even, odd = (cell.removeprefix("n=").split("\n")[0] for cell in (self.cells[1], self.otherwise))
            start = self.cells[0].removesuffix("print(n)")
            return f"{start}for _ in range({self.num_branch}): n={odd} if n%2 else {even}\nprint(n)"
        even, odd = (cell.removeprefix("print(").removesuffix(")") for cell in (self.cells[1], self.otherwise))
        return f"{self.cells[0].removesuffix('print(n)')}print({odd} if n%2 else {even})"


LOW, HIGH = (1, 9), (11, 99)
FAMILIES = (
    Family(
        kind=EASY,
        ranges=(LOW, LOW),
        wordings=("Ann has {a} apples and finds {b} more. How many has she?", "What is {a} plus {b}?"),
        cells=("print({a}+{b})",),
    ),
    Family(
        kind=EASY,
        ranges=((10, 18), LOW),
        wordings=("Of {a} birds {b} fly away. How many stay?", "What is {a} minus {b}?"),
        cells=("print({a}-{b})",),
    ),
    Family(
        kind=ONE,
        ranges=(HIGH, HIGH),
        wordings=("A box holds {a} pens. How many pens do {b} boxes hold?", "What is {a} times {b}?"),
        cells=("print({a}*{b})",),
    ),
    Family(
        kind=ONE,
        ranges=(HIGH, HIGH, HIGH),
        wordings=(
            "A farmer packs {a} crates of {b} eggs and {c} eggs break. How many are whole?",
            "{a} rows have {b} seats each and {c} seats are taken. How many are free?",
        ),
        cells=("print({a}*{b}-{c})",),
    ),
    Family(
        kind=ONE,
        ranges=(LOW, HIGH, HIGH),
        wordings=(
            "What remains when {a} to the power {b} is divided by {c}?",
            "Find {a} to the power {b} modulo {c}.",
        ),
        cells=("print({a}**{b}%{c})",),
    ),
    Family(
        kind=TWO,
        ranges=(HIGH, HIGH),
        wordings=(
            "Let n be {a} times {b}. If n is even give half of n, else give 3 times n plus 1.",
            "Multiply {a} by {b}. Halve an even result; of an odd one take 3 times it plus 1.",
        ),
        cells=("n={a}*{b}\nprint(n)", "print(n//2)"),
        otherwise="print(3*n+1)",
    ),
    Family(
        kind=TWO,
        ranges=(HIGH, HIGH),
        wordings=(
            "Let n be {a} plus {b}. If n is even give n times n, else give n times 7.",
            "Add {a} and {b}. Square an even result; of an odd one take 7 times it.",
        ),
        cells=("n={a}+{b}\nprint(n)", "print(n*n)"),
        otherwise="print(n*7)",
    ),
    *(
        Family(
            kind=kind,
            ranges=(HIGH, HIGH),
            wordings=(
                f"Let n be {{a}} {words} {{b}}. {num} times: if n is even halve it, else take 3 times n "
                "plus 1. Give n.",
                f"Begin with {{a}} {words} {{b}}. Do this {num} times: halve an even number; of an odd one "
                "take 3 times it plus 1.",
            ),
            cells=(f"n={{a}}{sign}{{b}}\nprint(n)", "n=n//2\nprint(n)"),
            otherwise="n=3*n+1\nprint(n)",
            num_branch=num,
        )
        for kind, num in ((THREE, 2), (FOUR, 3), (FIVE, 4), (SIX, 5), (SEVEN, 6))
        for words, sign in (("times", "*"), ("plus", "+"))
    ),
)


def generate(
    num: int, seed: int, without: Collection[str] = (), shares: Mapping[str, float] = SHARES
) -> list[dict[str, Any]]:
    """`num` different problems as rows of `data/README.md`, none of whose questions is in `without`.

    `shares` are those of the kinds, relative to one another.
    """
    rng, seen, rows, fruitless = random.Random(seed), set(without), list[dict[str, Any]](), 0
    while len(rows) < num and fruitless < MAX_FRUITLESS:
        row = make_row(rng, shares)
        fruitless += 1
        if row["question"] not in seen:
            seen.add(row["question"])
            rows.append(row)
            fruitless = 0
    return rows


def make_row(rng: random.Random, shares: Mapping[str, float]) -> dict[str, Any]:
    """A problem with its answer, its kind, and the cells that solve it with what they show."""
    kind = rng.choices(list(shares), list(shares.values()))[0]
    family, numbers = draw(rng, kind)
    question = rng.choice(ASIDES).format(x=rng.randint(2, 99)) + rng.choice(family.wordings).format(**numbers)
    cells = [family.cells[0].format(**numbers)]
    for _ in range(family.num_branch if family.otherwise else 0):
        cells.append(family.otherwise if int(shown(cells)[-1]) % 2 else family.cells[1])
    outputs = shown(cells)
    return {"question": question, "answer": outputs[-1], "kind": kind, "cells": cells, "outputs": outputs}


def draw(rng: random.Random, kind: str) -> tuple[Family, dict[str, int]]:
    """Draw a family of this kind, and its numbers by their names."""
    family = rng.choice([family for family in FAMILIES if family.kind == kind])
    return family, {name: rng.randint(*span) for name, span in zip("abc", family.ranges, strict=False)}


def shown(cells: Sequence[str]) -> list[str]:
    """The output of each cell. Cells are executed here: callers give arithmetic of this module's forms alone."""
    names: dict[str, Any] = {}
    outputs = []
    for cell in cells:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(cell, names)
        outputs.append(printed.getvalue().strip())
    return outputs

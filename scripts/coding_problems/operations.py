"""The operations that generated problems are made of, on a line of numbers or on a word.

A problem is a short chain of operations, most of which have a parameter. So it gets harder by one more operation and
easier by one less, its solution is known, and a fresh machine needs no download.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NUMBERS, WORD, ANSWER = "numbers", "word", "answer"
LETTERS = "pqrst"  # few, so that a letter that a problem asks for often occurs; no vowels, so that no words form


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step of a chain."""

    name: str
    takes: str
    """NUMBERS or WORD."""
    gives: str
    """NUMBERS, WORD or ANSWER, which ends a chain."""
    phrases: tuple[str, ...]
    """Wordings of the step. `{k}` stands for a number, `{c}` and `{d}` for two different letters."""
    code: str
    """A Python statement that changes or prints `x`, with the same placeholders."""
    low: int
    """The smallest `k`."""
    high: int
    """The largest `k`."""

    def draw(self, rng: random.Random) -> dict[str, str]:
        """Draw values for the placeholders."""
        c, d = rng.sample(LETTERS, 2)
        values = {"k": str(rng.randint(self.low, self.high)), "c": c, "d": d}
        return {name: value for name, value in values.items() if f"{{{name}}}" in self.code}


def _numbers(name: str, code: str, *phrases: str, low: int = 2, high: int = 5) -> Operation:
    code = f"x = {code}"
    return Operation(name=name, takes=NUMBERS, gives=NUMBERS, phrases=phrases, code=code, low=low, high=high)


def _word(name: str, code: str, *phrases: str, low: int = 2, high: int = 3) -> Operation:
    return Operation(name=name, takes=WORD, gives=WORD, phrases=phrases, code=f"x = {code}", low=low, high=high)


def _answer(name: str, code: str, *phrases: str, takes: str = NUMBERS) -> Operation:
    return Operation(name=name, takes=takes, gives=ANSWER, phrases=phrases, code=f"print({code})", low=2, high=5)


OPERATIONS = {
    operation.name: operation
    for operation in (
        _numbers("add", "[v + {k} for v in x]", "add {k} to each number", "increase every number by {k}"),
        _numbers("subtract", "[v - {k} for v in x]", "subtract {k} from each number", "lower every number by {k}"),
        _numbers("multiply", "[v * {k} for v in x]", "multiply each number by {k}", "take every number {k} times"),
        _numbers("divide", "[v // {k} for v in x]", "divide each number by {k} and round down"),
        _numbers("remainder", "[v % {k} for v in x]", "replace each number by its remainder modulo {k}"),
        _numbers("square", "[v * v for v in x]", "square each number", "multiply every number by itself"),
        _numbers("negate", "[-v for v in x]", "change the sign of each number", "negate every number"),
        _numbers("absolute", "[abs(v) for v in x]", "take the absolute value of each number", "drop every minus sign"),
        _numbers("cap", "[min(v, {k}) for v in x]", "replace numbers above {k} by {k}", "cut every number off at {k}"),
        _numbers("raise", "[max(v, {k}) for v in x]", "replace numbers below {k} by {k}"),
        _numbers("even", "[v for v in x if v % 2 == 0]", "keep the even numbers", "remove all odd numbers"),
        _numbers("odd", "[v for v in x if v % 2 == 1]", "keep the odd numbers", "remove all even numbers"),
        _numbers("above", "[v for v in x if v > {k}]", "keep the numbers above {k}", "drop numbers up to {k}"),
        _numbers("below", "[v for v in x if v < {k}]", "keep the numbers below {k}", "drop numbers from {k} on"),
        _numbers("multiples", "[v for v in x if v % {k} == 0]", "keep the multiples of {k}", high=4),
        _numbers("without", "[v for v in x if v != {k}]", "remove every {k}", "drop all numbers equal to {k}"),
        _numbers("reverse", "x[::-1]", "reverse their order", "put them in opposite order"),
        _numbers("sort", "sorted(x)", "sort them", "order them from smallest to largest"),
        _numbers(
            "descending", "sorted(x)[::-1]", "sort them in descending order", "order them from largest to smallest"
        ),
        _numbers(
            "distinct", "list(dict.fromkeys(x))", "remove repeated numbers", "keep only the first of equal numbers"
        ),
        _numbers("first", "x[:{k}]", "keep the first {k}", "take only the first {k} numbers", high=3),
        _numbers("last", "x[-{k}:]", "keep the last {k}", "take only the last {k} numbers", high=3),
        _numbers("skip", "x[{k}:]", "drop the first {k}", "leave out the first {k} numbers", low=1, high=2),
        _numbers(
            "alternate", "x[::2]", "keep every second number, beginning with the first", "skip every other number"
        ),
        _numbers("totals", "[sum(x[:i + 1]) for i in range(len(x))]", "replace them by their running totals"),
        _numbers("differences", "[b - a for a, b in zip(x, x[1:])]", "replace them by the differences of neighbours"),
        _numbers("twice", "x + x", "write the whole line twice", "append the line to itself"),
        _answer("show", "*x", "print the numbers", "print what is left"),
        _answer("sum", "sum(x)", "print the sum", "print their total"),
        _answer("largest", "max(x)", "print the largest", "print the maximum"),
        _answer("smallest", "min(x)", "print the smallest", "print the minimum"),
        _answer("range", "max(x) - min(x)", "print the largest minus the smallest", "print the range"),
        _answer("count", "len(x)", "print how many numbers there are", "print the count"),
        _answer("occurrences", "x.count({k})", "print how often {k} occurs", "count the {k}s"),
        _answer("head", "x[0]", "print the first number", "print the number at the front"),
        _answer("tail", "x[-1]", "print the last number", "print the number at the end"),
        _answer("variety", "len(set(x))", "print how many different numbers there are", "count the distinct numbers"),
        _answer("place", "x.index(max(x)) + 1", "print the place of the largest, counted from 1"),
        _answer("contains", "'yes' if {k} in x else 'no'", "print yes if {k} is there, else no"),
        _answer("rising", "'yes' if x == sorted(x) else 'no'", "print yes if they are in ascending order, else no"),
        _answer("ends", "x[0] + x[-1]", "print the first plus the last", "add the two ends"),
        _word("backwards", "x[::-1]", "reverse it", "read it backwards"),
        _word("upper", "x.upper()", "write it in capitals", "make it upper case"),
        _word("repeat", "x * {k}", "write it {k} times in a row", "repeat it {k} times"),
        _word("remove", "x.replace('{c}', '')", "remove every {c}", "delete the letter {c}"),
        _word("replace", "x.replace('{c}', '{d}')", "replace every {c} by {d}", "turn each {c} into {d}"),
        _word("start", "x[:{k}]", "keep the first {k} letters", "cut it to {k} letters"),
        _word("end", "x[-{k}:]", "keep the last {k} letters", "take its last {k} letters"),
        _word("behead", "x[{k}:]", "drop the first {k} letters", "leave out its first {k} letters", low=1, high=2),
        _word("letters", "''.join(sorted(x))", "sort its letters", "put its letters in order"),
        _word("double", "''.join(c * 2 for c in x)", "double each letter", "write every letter twice"),
        _word("unique", "''.join(dict.fromkeys(x))", "remove repeated letters", "keep only the first of equal letters"),
        _word("mirror", "x + x[::-1]", "append its reverse", "write it and then its mirror image"),
        _answer("say", "x", "print it", "print the result", takes=WORD),
        _answer("length", "len(x)", "print its length", "print how many letters it has", takes=WORD),
        _answer("letter_count", "x.count('{c}')", "print how often {c} occurs", "count the letter {c}", takes=WORD),
        _answer("first_letter", "x[0]", "print its first letter", "print the letter at the front", takes=WORD),
        _answer("last_letter", "x[-1]", "print its last letter", "print the letter at the end", takes=WORD),
        _answer(
            "palindrome", "'yes' if x == x[::-1] else 'no'", "print yes if it is a palindrome, else no", takes=WORD
        ),
        _answer("has", "'yes' if '{c}' in x else 'no'", "print yes if it has the letter {c}, else no", takes=WORD),
    )
}
READ = {NUMBERS: "x = list(map(int, input().split()))", WORD: "x = input()"}
OPENINGS = {
    NUMBERS: ("Read a line of numbers", "You get numbers on one line", "Given a line of integers"),
    WORD: ("Read a word", "You get one word", "Given a word"),
}

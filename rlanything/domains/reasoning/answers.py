r"""Is an answer right? What the last \boxed{} of a response holds, against the truth: as text, number or letter. Pure.

Every verdict names the rule that decided. Answers that these rules cannot decide go to `grading.Grader`, which knows
algebra. No rule loosens a truth: `\boxed{70}` is right for 070, and no text around a box counts.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from rlanything.domains.answers import without_thoughts

LONGEST = 300  # characters of an answer; a longer one is no answer to a question with a short truth
TOO_LONG = 4 * LONGEST  # with LaTeX that does not matter
CHOICES = "ABCDEFGHIJ"

_BRACE = re.compile(r"(?<!\\)(?:\\\\)*([{}])")  # behind no backslash, or an even number of them
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=\{)")
_WRAPPED = re.compile(r"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|mbox|boxed|fbox|operatorname)\s*\{([^{}]*)\}")
_SPACES = re.compile(r"\\[,;:! ]|\\q?quad\b|~|\\left\b|\\right\b|\\displaystyle\b|\{\}")
_THIN_THOUSANDS = re.compile(r",?(?:\\[,! ]|~)(?=\d{3})")
_DIGITS = re.compile(r"[-+]?\d{1,3}(?:,?(?:\\[,! ]|~)\d{3})+(?:\.\d+)?")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:(?:,|\{,\})\d{3})+(?:\.\d+)?")
_FRACTION = re.compile(r"([-+]?)\\[dtc]?frac\s*(?:\{([-+]?\d+)\}|(\d))\s*(?:\{([-+]?\d+)\}|(\d))")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3}|/[-+]?\d+)?")
# "C cannot be told" names no letter.
_PROSE = r"(?i:and|or|am|can|cannot|could|will|would|should|may|must|do|does|don|has|have|not|think|believe)"
_ALONE = re.compile(r"\(?([A-Ja-j])\)?[.:]?")
_MARKED = re.compile(r"\(?([A-Ja-j])[.:)]\s*\S.*", re.DOTALL)
# "A" and "I" are words, too: a proton, I guess.
_BEFORE_WORDS = re.compile(rf"([A-J]) (?:[-\d$]|(?<![AI] )(?!{_PROSE}\b)\w).*", re.DOTALL)
_CHOICE_NAME = re.compile(r"\A(?:option|choice|answer)\s*:?\s*", re.IGNORECASE)
_SEVERAL = re.compile(r"\W*[A-J](?:(?:\W|\b(?i:and|or)\b)+[A-J])+\W*")
_WORDS = re.compile(r"[A-Za-z]+(?: [A-Za-z]+)*")
_AROUND = "*[]{} "  # what models put around a letter
_QUOTES = "'\"`“”‘’ "


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The verdict on an answer."""

    right: bool
    rule: str
    """The rule that decided: "text", "number", "letter" or "math"; else the reason why nothing was to decide."""


def boxed(text: str) -> str | None:
    r"""The content of the last \boxed{...} that is closed, outside of thoughts; None if there is none."""
    said = without_thoughts(text)
    boxes = {found.end() for found in _BOX.finditer(said)}  # places of their braces
    last: tuple[int, int] | None = None
    open_braces: list[int] = []
    for brace in _BRACE.finditer(said):
        if brace[1] == "{":
            open_braces.append(brace.start(1))
        elif open_braces and (start := open_braces.pop()) in boxes and (last is None or start > last[0]):
            last = start, brace.start(1)
    return said[last[0] + 1 : last[1]].strip() if last else None


def normal(answer: str) -> str:
    """An answer without what never matters: dollars, quotes, LaTeX for text and space, separators of thousands.

    One that is too long to be an answer is left as it is.
    """
    if len(answer) > TOO_LONG:
        return answer
    answer = answer.replace("\N{MINUS SIGN}", "-").replace("\N{EN DASH}", "-")
    answer = _THIN_THOUSANDS.sub("", answer) if _DIGITS.fullmatch(answer.strip("$ ")) else answer
    while (plain := _WRAPPED.sub(r"\1", answer)) != answer:
        answer = plain
    answer = " ".join(_SPACES.sub(" ", answer).split())
    answer = answer.removeprefix("\\(").removesuffix("\\)").strip("$" + _QUOTES).removesuffix(".").strip("$" + _QUOTES)
    return re.sub(r",|\{,\}", "", answer) if _THOUSANDS.fullmatch(answer) else answer


def number(answer: str) -> Fraction | None:
    """The exact number that a normal answer is, or None."""
    try:
        if found := _FRACTION.fullmatch(answer):
            sign, over, short_over, under, short_under = found.groups()
            return (-1 if sign == "-" else 1) * Fraction(int(over or short_over), int(under or short_under))
        return Fraction(answer) if _NUMBER.fullmatch(answer) else None
    except (ValueError, ZeroDivisionError):
        return None


def choice(answer: str) -> str | None:
    """The letter of a choice that an answer begins with: `B`, `b`, `(B)`, `Option B`, `B. 3.4 eV`.

    None if it begins with none, or names several.
    """
    plain = _CHOICE_NAME.sub("", normal(answer).strip(_AROUND)).strip(_AROUND)
    if _SEVERAL.fullmatch(plain):
        return None
    found = _ALONE.fullmatch(plain) or _MARKED.fullmatch(plain) or _BEFORE_WORDS.fullmatch(plain)
    return found[1].upper() if found else None


def same(answer: str, truth: str) -> Grade | None:
    """Compare an answer with the truth as text and as a number. Returns None if algebra has to decide."""
    if len(answer) > TOO_LONG:
        return Grade(right=False, rule="too long")
    ours, theirs = normal(answer), normal(truth)
    if ours == theirs:
        return Grade(right=True, rule="text")
    x, y = number(ours), number(theirs)
    if x is not None and y is not None:
        return Grade(right=x == y, rule="number")
    if not ours:
        return Grade(right=False, rule="empty")
    # Algebra takes b for B, and a word for the product of its letters.
    if _WORDS.fullmatch(ours) and _WORDS.fullmatch(theirs) and len(ours) + len(theirs) != 3:
        return Grade(right=len(ours) > 1 and ours.lower() == theirs.lower(), rule="text")
    if len(ours) > LONGEST:
        return Grade(right=False, rule="too long")
    return None


def same_choice(answer: str, truth: str) -> Grade:
    """Compare an answer's letter with the right one. The words of a choice do not count: they may be another's."""
    return Grade(right=choice(answer) == choice(truth), rule="letter")

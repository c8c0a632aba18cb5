"""Reads what models give as their answer, whatever the domain. Pure.

Prompts ask for one form; the readers take what instruct models make of it: LaTeX around a value, a number before it, a
period after it, other letters' case.
"""

import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

THOUGHT, THOUGHT_END = "<think>", "</think>"
_LATER_THOUGHT = re.compile(rf"^[ \t]*{THOUGHT}.*?(?:{THOUGHT_END}|\Z)", re.MULTILINE | re.DOTALL)
MAX_NESTED = 5  # LaTeX commands within one another that are taken off

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s*([+-]?\d)(?![\d./])")
_LATEX_COLOR = re.compile(
    r"\\(?:textcolor|color)\s*\{\w+\}\s*(?:\{([^{}]*)\})?|\\(?:bf|bfseries|displaystyle|left|right)\b"
)
_LATEX_TEXT = re.compile(r"\\(?:text\w*|math\w*|mbox|emph|operatorname|underline|boxed|fbox)\s*\{([^{}]*)\}")
_LATEX_SPACE = re.compile(r"\\[ ,;:!]|\\q?quad\b|~")
_LATEX_ESCAPE = re.compile(r"\\([_#%&$])")
_QUOTES = "`'\"*$“”‘’ "
_AROUND = _QUOTES + "(){}[]\\"  # what models put around a score
_MINUS = re.compile("[\N{MINUS SIGN}\N{HYPHEN}\N{EN DASH}]|\N{EM DASH}(?=\\d)")
_SCORE_NAME = re.compile(  # "score - 1" may mean both
    r"\A(?:(?:(?:the|my|final) )*(?:score|rating|answer|judge?ment|verdict)(?: is)?(?: *[:=] *|(?! *- ) *)"
    r"|(?:good|bad|correct|incorrect|right|wrong) *[:=(] *)",
    re.IGNORECASE,
)
_SCORE = re.compile(r"([+-]?)1(?:\.0*)?(?![\d./])\D*")
_OPTION = r"(?:(?:command|action|option|number|no\.?)\s*)?[#(\[]?(\d{1,6})[)\]]?"
_NUMBERED = re.compile(_OPTION + r"\s*(?:[.:)-]\s*(?!\d).*)?")
_NUMBER_BEFORE = re.compile(r"\A" + _OPTION + r"[\s.:)-]+(?!\d)")
_NUMBER_AFTER = re.compile(r" [(\[]\d{1,6}[)\]]\Z")
_LABEL = re.compile(r"\A[> ]*(?:(?:command|action|option|answer) ?[:=])?")
_PAIR = re.compile(r"\[(.*)\]|\((.*)\)|\{(.*)\}|<(.*)>")


def boxed(text: str) -> list[str]:
    """The contents of every \\boxed{...} that is closed, without LaTeX commands for text, white space joined."""
    opened, found = [], []
    starts = {match.end() - 1: match.start() for match in _BOX.finditer(text)}
    for i, character in enumerate(text):
        if i and text[i - 1] == "\\" and character in "{}":
            continue
        if character == "{":
            opened.append(i)
        elif character == "}" and opened and (start := opened.pop()) in starts:
            found.append((starts[start], start + 1, i))
    outermost: list[str] = []
    last = 0
    for box, start, end in sorted(found):
        if box >= last:
            outermost.append(_without_latex(text[start:end]))
            last = end
    return outermost


def _without_latex(text: str) -> str:
    plain = _LATEX_COLOR.sub(lambda found: found[1] or "", _LATEX_SPACE.sub(" ", text))
    for _ in range(MAX_NESTED):
        plain = _LATEX_TEXT.sub(r"\1", plain)
    return " ".join(_LATEX_ESCAPE.sub(r"\1", plain).split())


def without_thoughts(text: str) -> str:
    """The response without its thoughts, the last of which may be cut off: calls and boxes in them are drafts."""
    thought, ended, said = text.partition(THOUGHT_END)
    # The prompt may have opened the thought. Marks within a line of a text or a call are no thought.
    begins = text.lstrip().startswith(THOUGHT) or (ended and THOUGHT not in thought)
    return _LATER_THOUGHT.sub("", said if begins else text)


def parse_score(text: str) -> tuple[int | None, str]:
    """The score of a judgement: the last boxed value outside of its thoughts, which must be 1 or -1. (score, "") or
    (None, why not)."""
    said = without_thoughts(text)
    found = boxed(said) or _BARE_BOX.findall(said)
    if not found:
        return None, "no boxed score, expected \\boxed{1} or \\boxed{-1}"
    value = _MINUS.sub("-", unicodedata.normalize("NFKC", found[-1])).strip(_AROUND)
    value = _SCORE_NAME.sub("", value, count=1).strip(_AROUND).replace("- ", "-")
    score = _SCORE.fullmatch(value)
    if score is None:
        return None, f"boxed {found[-1]!r}, expected 1 or -1"
    return (-1 if score[1] == "-" else 1), ""


def choose(answer: str, options: Sequence[str], numbered: bool, first: int = 1) -> str | None:
    """The option that an answer means: its text, or its number (from `first` on) if the model sees options numbered.

    Letters' case, quotation marks and a period at the end do not matter. Returns None if the answer means no option.
    """
    by_text = {canonical(option): option for option in options}
    plain = canonical(answer)
    bare = canonical(_LABEL.sub("", plain))
    pair = _PAIR.fullmatch(bare)
    texts = [
        plain,
        bare,
        canonical(_NUMBER_AFTER.sub("", bare)),
        *([canonical(pair[pair.lastindex or 0])] if pair else []),
    ]
    if numbered:
        texts.append(canonical(_NUMBER_BEFORE.sub("", bare, count=1)))
    if found := next((by_text[text] for text in texts if text in by_text), None):
        return found
    number = _NUMBERED.fullmatch(bare) if numbered else None
    if number is None:
        return None
    place = int(number[1]) - first
    return options[place] if 0 <= place < len(options) else None


def canonical(answer: str) -> str:
    """An answer in lower case, white space joined, without the quotation marks and the period around it."""
    return " ".join(answer.lower().split()).strip(_QUOTES).rstrip(".;,!").strip(_QUOTES)


def whole(text: str) -> str:
    """The text with its halves of characters (surrogates) joined, and U+FFFD in place of one that stands alone."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def last_object(text: str, keys: Sequence[str]) -> dict[str, Any] | None:
    """The last JSON object in a text that has all of `keys`; None if there is none."""
    decoder, found, start = json.JSONDecoder(), None, text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):  # RecursionError: deeply nested brackets
            end = start + 1
        else:
            if isinstance(value, dict) and all(key in value for key in keys):
                found = value
        start = text.find("{", end)
    return found

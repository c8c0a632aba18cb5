"""Reads fenced blocks out of a model's answer by the rules of CommonMark, as markdown-it-py implements them. Pure.

Models write a little more freely than CommonMark allows. A fence may open a block of a known language after text in the
line, and text may follow a closing fence. If a block of Python does not compile, it is read again with one of these
changes, and the first reading that compiles is taken: a fence at the end of a line of code closes the block, or a line
that looks like the closing fence belongs to a string.
"""

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from markdown_it import MarkdownIt
from markdown_it.token import Token

from rlanything.domains.fences import lines_of

SESSION = "pycon"  # what a block is called that holds a session with Python's prompts
PYTHON = frozenset({"python", "py", "pypy", "ipython", SESSION})
GIVEN, WANTED = ("input", "stdin"), ("output", "stdout")  # what blocks of a test are called
MAX_CHANGE = 20  # changes that are tried in one answer
STRING_FENCE = "\ue000"  # begins a line that looks like a fence and is none; a private character of Unicode

_ATTRIBUTES = ("sample", "example", "test", "expected")  # of an input or an output
_LANGUAGE = re.compile(r"[a-z+#]+")
_SESSION = re.compile(r"(?:[ \t]*(?:#.*)?\n)*>>>(?: |$)", re.MULTILINE)
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")

# Fences may be indented by any number of columns, and tags such as <think> begin no HTML. Rules ("hr") take quadratic
# time in lines such as "- - - -".
_MARKDOWN = MarkdownIt("commonmark").disable(["code", "html_block", "reference", "hr"])
_MARKDOWN.core.ruler.disable("inline")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block."""

    language: str
    """The name in its first line, in lower case and without a version ("python" of "{.Python3}"), or "".

    It may stand within the first word (`main.py`, `expected_output`), or after attributes (`title=...`, `sample`).
    """
    text: str
    """Its lines, without the indentation or quotation marks of the list or quotation around it."""
    lead: str
    """The last line of text before it, such as "Sample output:", or ""."""


def fenced_blocks(text: str) -> list[Block]:
    """All fenced blocks of an answer, in order. A console session ("pycon") becomes what was typed."""
    lines = lines_of(text.replace("\r\n", "\n").replace("\r", "\n"))  # CommonMark ends lines at all three
    blocks: list[Block] = []
    lead, budget = "", MAX_CHANGE
    tokens = _tokens(lines, 0)
    while tokens:
        start, token = tokens.popleft()
        if token.type == "inline":
            lead = (token.content.strip().splitlines() or [""])[-1]
            continue
        if _language(token) in PYTHON and not compiles(_plain(token)):
            for changed in islice(_changes(lines, start, token), budget):
                budget -= 1
                reread = _tokens(changed, start)
                _, candidate = reread.popleft()
                if compiles(_plain(candidate)):
                    lines, tokens, token = changed, reread, candidate
                    break
        blocks.append(Block(language=_language(token), text=_plain(token), lead=lead))
        lead = ""
    return blocks


def compiles(program: str) -> bool:
    """Say whether a text is a program that this Python can compile. It is not run."""
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: brackets nested too deeply
        return False
    return True


def _tokens(lines: list[str], start: int) -> deque[tuple[int, Token]]:
    """Fences and paragraphs from line `start` on, each with its first line."""
    tokens = _MARKDOWN.parse("\n".join(lines[start:]))
    return deque((start + t.map[0], t) for t in tokens if t.type in ("fence", "inline") and t.map)


def _changes(lines: list[str], start: int, token: Token) -> Iterator[list[str]]:
    """Other readings of the block in line `start`: first those that end it earlier, then those that end it later."""
    num_line = len(token.content.removesuffix("\n").split("\n")) if token.content else 0
    for i in range(start + 1, start + 1 + num_line):
        code = lines[i].rstrip()
        if code.endswith(token.markup) and code.strip(token.markup[0] + " \t>"):
            yield [*lines[:i], code.removesuffix(token.markup), token.markup, *lines[i + 1 :]]
    changed = list(lines)
    for i in range(start + 1 + num_line, len(lines)):
        if lines[i].strip(" \t>").startswith(token.markup):
            changed[i] = lines[i].replace(token.markup, STRING_FENCE + token.markup, 1)
            yield list(changed)


def _language(token: Token) -> str:
    named = _named(token.info.lower())
    return SESSION if named in PYTHON and _SESSION.match(token.content) and not compiles(token.content) else named


def _named(info: str) -> str:
    for part in info.split():
        words = _LANGUAGE.findall(part)
        known = PYTHON if "=" in part else {*PYTHON, *GIVEN, *WANTED}
        if found := next((word for word in words if word in known), ""):
            return found
        if words and "=" not in part and part not in _ATTRIBUTES:
            return words[0]
    return ""


def _plain(token: Token) -> str:
    """The block's text: of a console session what was typed, of a changed block without the marks of the change."""
    text = token.content.replace(STRING_FENCE, "")
    if _language(token) != SESSION:
        return text
    typed = (line for line in text.splitlines(keepends=True) if _PROMPT.match(line))
    return "".join(_PROMPT.sub("", line, count=1) for line in typed)

"""Reads fenced blocks out of a model's answer by the rules of CommonMark, as markdown-it-py implements them. Pure.

Models write a little more freely than CommonMark allows. A fence may open a block of a known language after text in the
line, and text may follow a closing fence. If a block of Python does not compile, it is read again with one of these
changes, and the first reading that compiles is taken: a fence at the end of a line of code closes the block, or a line
that looks like the closing fence belongs to a string.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from markdown_it import MarkdownIt
from markdown_it.token import Token

PYTHON = frozenset({"python", "py", "pypy", "ipython", "pycon"})
MAX_CHANGE = 20  # changes that are tried in one answer
STRING_FENCE = "\ue000"  # begins a line that looks like a fence and is none; a private character of Unicode

_OPENS = re.compile(r"[\s>]*(?:[-*+]\s+|\d{1,9}[.)]\s+)*(`{3,}|~{3,})")
_OPENS_LATE = re.compile(r"(?<!`)```+(?:python|py|input|output)[\w.:-]*[ \t]*$", re.IGNORECASE)
_CLOSES = re.compile(r"[\s>]*(`{3,}|~{3,})(?:[ \t]+(?=[^\s`~])|(?=</|<\||\[/|[.}])|$)")
_MARKERS = re.compile(r"(?:[\s>*+-]|\d{1,9}[.)])*")  # of lists and quotations
_LANGUAGE = re.compile(r"[a-z+#]+")
_PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")

# Fences may be indented by any number of columns, and tags such as <think> begin no HTML. Rules ("hr") take quadratic
# time in lines such as "- - - -".
_MARKDOWN = MarkdownIt("commonmark").disable(["code", "html_block", "reference", "hr"])
_MARKDOWN.core.ruler.disable("inline")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block."""

    language: str
    """What its first line names, in lower case and without a version ("python" of "{.Python3}"), or ""."""
    text: str
    """Its lines, without the indentation or quotation marks of the list or quotation around it."""
    lead: str
    """The last line of text before it, such as "Sample output:", or ""."""


def fenced_blocks(text: str) -> list[Block]:
    """All fenced blocks of an answer, in order. A console session ("pycon") becomes the program that was typed."""
    lines = _lines(text.replace("\r\n", "\n").replace("\r", "\n"))  # CommonMark ends lines at all three
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


def _lines(text: str) -> list[str]:
    """The lines of a text, split before a fence that opens after text, and after one that closes before text."""
    lines: list[str] = []
    fence = ""  # of the block that is open
    for line in text.split("\n"):
        if fence:
            closes = _CLOSES.match(line)
            if closes is None or not closes[1].startswith(fence):
                lines.append(line)
                continue
            fence = ""
            lines.append(line[: closes.end(1)])
            line = line[closes.end() :]
            if not line:
                continue
        late = _OPENS_LATE.search(line)
        if late and not _MARKERS.fullmatch(line, 0, late.start()):
            lines.append(line[: late.start()])
            line = line[late.start() :]
        if opens := _OPENS.match(line):
            fence = opens[1]
        lines.append(line)
    return lines


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
    found = _LANGUAGE.search(token.info.lower())
    return found[0] if found else ""


def _plain(token: Token) -> str:
    """The block's text: of a console session what was typed, of a changed block without the marks of the change."""
    text = token.content.replace(STRING_FENCE, "")
    if _language(token) != "pycon":
        return text
    typed = (line for line in text.splitlines(keepends=True) if _PROMPT.match(line))
    return "".join(_PROMPT.sub("", line, count=1) for line in typed)

"""The lines of a model's answer, with its fences where CommonMark looks for them. Pure."""

import re
import textwrap

_OPENS = re.compile(r"([\s>]*(?:[-*+]\s+|\d{1,9}[.)]\s+)*)(`{3,}|~{3,})(.*)")
_OPENS_LATE = re.compile(r"(?<!`)```+(?:python|py|input|output)[\w.:-]*[ \t]*$", re.IGNORECASE)
_CLOSES = re.compile(r"[\s>]*(`{3,}|~{3,})(?:[ \t]+(?=[^\s`~])|(?=</|<\||\[/|[.}])|$)")
_MARKERS = re.compile(r"(?:[\s>*+-]|\d{1,9}[.)])*")  # of lists and quotations
_WRAPPER = re.compile(r"\s*(?:markdown|md)\s*", re.IGNORECASE)  # names a block that other blocks may be within


def lines_of(text: str) -> list[str]:
    """The lines of a text, changed where models write fences that CommonMark would take for something else.

    A line is split before a fence that opens after text, and after one that closes before text. If the first block is
    in Markdown, it gives way to the blocks within it. A fence is indented no more than the first line of its block.
    """
    return _unindented(_unwrapped(_split(text)))


def _split(text: str) -> list[str]:
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
            fence = opens[2]
        lines.append(line)
    return lines


def _blocks(lines: list[str]) -> list[tuple[re.Match[str], int, int]]:
    """(opening fence, its line, the line of the closing fence or the number of lines) of each block."""
    blocks: list[tuple[re.Match[str], int, int]] = []
    opens, start = None, 0
    for i, line in enumerate(lines):
        if opens is None:
            opens, start = _OPENS.match(line), i
        elif (closes := _CLOSES.match(line)) and closes[1].startswith(opens[2]):
            blocks.append((opens, start, i))
            opens = None
    return blocks if opens is None else [*blocks, (opens, start, len(lines))]


def _unwrapped(lines: list[str]) -> list[str]:
    opens, start, end = next(iter(_blocks(lines)), (None, 0, 0))  # a block of Markdown after a program explains it
    if opens is None or not (_WRAPPER.fullmatch(opens[3]) and _names(lines[start + 1 : end])):
        return lines
    lines = [*lines[:start], "", *lines[start + 1 :]]
    opens, start, end = _blocks(lines)[-1]
    if end == len(lines) and not opens[3].strip():  # the fence that closed the wrapper opens a block now
        lines[start] = ""
    return lines


def _names(lines: list[str]) -> bool:
    """Say whether a fence among the lines names a language."""
    return any((opens := _OPENS.match(line)) and opens[3].strip() for line in lines)


def _unindented(lines: list[str]) -> list[str]:
    """CommonMark ends a block, with the list around it, at a line that is indented less than the list's text."""
    changed: list[str] = []
    done = 0  # lines before it are in `changed`
    for opens, start, end in _blocks(lines):
        prefix, inner = opens[1], lines[start + 1 : end]
        first = next((line.expandtabs() for line in inner if line.strip()), "")
        if ">" in prefix or not first or _names(inner) or len(first) - len(first.lstrip()) >= len(prefix.expandtabs()):
            continue
        changed += [*lines[done:start], prefix, lines[start][len(prefix) :]]
        changed += [*textwrap.dedent("\n".join(inner)).split("\n"), *(line.lstrip() for line in lines[end : end + 1])]
        done = end + 1
    return changed + lines[done:]

"""Fenced blocks are read out of what models write, as CommonMark reads them and a little more freely."""

from __future__ import annotations

import time

import pytest

from rlanything.domains.markdown import compiles, fenced_blocks

F = "```"
BODY = "n = int(input())\nif n:\n    print(n)\n"


def indented(prefix: str) -> str:
    return "".join(prefix + line for line in f"{F}python\n{BODY}{F}\n".splitlines(keepends=True))


@pytest.mark.parametrize(
    "text",
    [
        indented(""),
        *("1. First read n.\n" + indented(prefix) for prefix in ("  ", "   ", "    ", "     ", "\t")),
        "- a\n  - b\n" + indented("    "),
        indented("\t"),
        indented("> "),
        "> - quoted list\n" + indented(">   "),
        "1. " + indented("   ").lstrip(),
        "- " + indented("  ").lstrip(),
        f"Here it is:{F}python\n{BODY}{F}",
        f"**Solution:** {F}python3\n{BODY}{F}",
        f"{F}python\n{BODY}",
        f"{F}python\n{BODY.rstrip()}{F}",
        f"{F}python\n{BODY.rstrip()}{F}\n\nIt prints:\n{F}\n5\n{F}",
        f"~~~python\n{BODY}~~~",
        f"{F}`python\n{BODY}{F}`",
        f"{F}python\r\n" + BODY.replace("\n", "\r\n") + f"{F}\r\n",
        f"{F}text\n1\n{F} or rather: {F}python\n{BODY}{F}",
        f"<think>\nHm.\n</think>\n{F}python\n{BODY}{F}",
        f"<details>\n{F}python\n{BODY}{F}\n</details>",
        *(
            f"{before}{F}python\n{BODY}{after}{F}"
            for before in ("1. Code:\n   ", "- ", "2) ", "\t")
            for after in ("", "  ")
        ),
        f"1. Code:\n     {F}python\n" + "".join(f"   {line}" for line in BODY.splitlines(keepends=True)) + f"     {F}",
        f"- {F}python\n{BODY}",
        *(f"{F}{name}\n# Solution\n{F}python\n{BODY}{F}\n{F}\nThat is all." for name in ("markdown", "md", "Markdown")),
        *(f"<answer>{F}python\n{BODY}{F}{glued}" for glued in ("</answer>", "<|im_end|>", "[/ANSWER]", ".", "}")),
    ],
)
def test_a_block_is_read_wherever_it_stands(text: str) -> None:
    block = next(block for block in fenced_blocks(text) if block.language != "text")
    assert (block.language.rstrip("3"), block.text.rstrip("\n")) == ("python", BODY.rstrip("\n"))


@pytest.mark.parametrize(
    ("info", "language"),
    [
        ("python", "python"), ("Python3", "python"), ("python-3", "python"), ("python3.11", "python"), ("py", "py"),
        ("python:main.py", "python"), ('python title="main.py"', "python"), ("{.python}", "python"),
        ("{.python .numberLines}", "python"), ("{python}", "python"), ("cpp", "cpp"), ("c++", "c++"), ("", ""),
        ("main.py", "py"), ("language-python", "python"), ("lang=python", "python"), ('title="main.py" python', "py"),
        ('bash title="run.py"', "bash"), ("diff main.py", "diff"), ('cpp title="input.txt"', "cpp"),
        ('title="input.txt" cpp', "cpp"), ("expected_output", "output"),
        ("test_input", "input"), ("Sample input", "input"), ("text of it", "text"),
        (" input ", "input"), ("Output:", "output"),
    ],
)  # fmt: skip
def test_the_language_is_the_first_word_that_a_block_names(info: str, language: str) -> None:
    assert [block.language for block in fenced_blocks(f"{F}{info}\n1\n{F}")] == [language]


@pytest.mark.parametrize(
    "program",
    [
        f"s = '{F}'\nprint(s)\n",
        f"# use {F} here\nprint(1)\n",
        f"'''\n{F}\nexample\n{F}\n'''\nprint(1)\n",
        f'def f():\n    """\n    {F}python\n    f()\n    {F}\n    """\nprint(1)\n',
        f"text = '''{F}input\n1\n{F}'''\nprint(text)\n",
    ],
)
@pytest.mark.parametrize("after", ["", f"Run it:\n{F}bash\npython a.py\n{F}\n", f"Output:\n{F}\n1\n{F}\n"])
def test_a_fence_within_a_string_does_not_end_the_program(program: str, after: str) -> None:
    blocks = fenced_blocks(f"{F}python\n{program}{F}\n{after}")
    assert blocks[0].text == program
    assert len(blocks) == 1 + bool(after)


def test_a_program_that_does_not_compile_leaves_the_blocks_after_it_alone() -> None:
    blocks = fenced_blocks(f"{F}python\nprint(\n{F}\nBetter:\n{F}python\nprint(1)\n{F}\n")
    assert [block.text for block in blocks] == ["print(\n", "print(1)\n"]
    assert blocks[1].lead == "Better:"


def test_a_form_feed_in_a_program_is_no_end_of_a_line() -> None:
    program = "x = 1\n\x0c\n\x0b\u2028\x85\x0c\nprint(\n"  # does not compile, so other ends are tried
    assert fenced_blocks(f"{F}python\n{program}{F}")[0].text == program


def test_a_block_in_markdown_that_holds_no_block_is_one() -> None:
    blocks = fenced_blocks(f"{F}markdown\n# Plan\n{F}\n{F}python\n{BODY}{F}")
    assert [(block.language, block.text) for block in blocks] == [("markdown", "# Plan\n"), ("python", BODY)]


def test_a_session_in_a_block_of_python_is_a_session() -> None:
    (block,) = fenced_blocks(f"{F}python\n# an example\n>>> f(2)\n4\n{F}")
    assert (block.language, block.text) == ("pycon", "f(2)\n")
    program = 'def f(n):\n    """Square.\n\n    >>> f(2)\n    4\n    """\n    return n * n\n'
    (block,) = fenced_blocks(f"{F}python\n{program}{F}")
    assert (block.language, block.text) == ("python", program)


@pytest.mark.parametrize(
    "text",
    [
        f'{F}python\n"""\n>>> f(2)\n4\n"""\ndef f(n):\n    return n\nprint(f(2)){F}',
        f'{F}python\n"""\n>>> f(2)\n"""\ns = """\n{F}\nx\n{F}\n"""\nprint(s)\n{F}',
        f"  {F}python\n  s = '''\nabc\n'''\n  print(s)\n  {F}\n",
        f"  {F}python\n  if 1:\n      print(1)\n# done\n  {F}",
        f"1. Code:\n   {F}python\n   print(1)\n\nThat is all.\n",
        f"{F}python\nprint(1)\n{F}\n{F}markdown\n# Use\n{F}python\nimport x; print(x\n{F}\n{F}",
    ],
    ids=range(6),
)
def test_what_commonmark_reads_well_stays_as_it_is(text: str) -> None:
    block = fenced_blocks(text)[0]
    assert block.language == "python" and "print(" in block.text and compiles(block.text)


def test_blocks_in_a_list_that_no_fence_closes_end_with_it() -> None:
    blocks = fenced_blocks(f"1. Input:\n   {F}input\n   3\n\n2. Output:\n   {F}output\n   4\n   {F}\n")
    assert [(block.language, block.text.strip()) for block in blocks] == [("input", "3"), ("output", "4")]


def test_a_console_session_is_the_program_that_was_typed() -> None:
    text = f"{F}pycon\n>>> for i in range(2):\n...     print(i)\n...\n0\n1\n>>> print('ok')\nok\n{F}"
    assert fenced_blocks(text)[0].text == "for i in range(2):\n    print(i)\n\nprint('ok')\n"


def test_a_block_knows_the_line_before_it() -> None:
    text = f"# Sample\n\n**Input:**\n{F}\n3\n{F}\nand the output is\n\n{F}\n6\n{F}\n{F}\n7\n{F}"
    assert [block.lead for block in fenced_blocks(text)] == ["**Input:**", "and the output is", ""]


@pytest.mark.parametrize(
    "text",
    [
        "- " * 50_000, "> " * 50_000, "`" * 100_000, "[a](b " * 20_000, "a" + " " * 50_000 + "b", "#" * 50_000,
        "(" * 100_000, f"{F}python\n" + f"x{F}\n" * 20_000, f"{F}python\nx = (\n{F}\n" * 1_000,
        f"{F}python\n" + "(" * 50_000 + f"\n{F}", "1" * 50_000 + f"{F}python\n{F}", f"{F}py" * 20_000,
        f"- {F}\nx\n{F}\n" * 10_000, f"{F}markdown\n" * 20_000, f"{F}markdown\n{F}py\nx\n{F}\n{F}\n" * 5_000,
    ],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_no_answer_takes_long_to_read(text: str) -> None:
    started = time.process_time()
    fenced_blocks(text)
    assert time.process_time() - started < 5  # seconds; quadratic time would be minutes


def test_what_nests_too_deeply_does_not_compile() -> None:
    assert compiles("print(1)") and not compiles("print(") and not compiles("(" * 100_000) and not compiles("\0")

"""The prompts of the domain. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlanything.domains.coding.prompts import statement
from rlanything.domains.reasoning.answers import CHOICES
from rlanything.domains.reasoning.problems import is_choice, is_program

THINK = "Think about the problem step by step."
USE = (
    "You can run Python code with the tool code_interpreter: use it to calculate, to try, and to check what you found. "
    "Names last from one call to the next."
)
VALUE = "Give the final answer, without words or units around it, in \\boxed{}."
LETTER = "Give the letter of the right choice in \\boxed{}."
PROGRAM = (
    "The answer is one complete Python 3 program that reads standard input and writes standard output, in one block "
    "fenced by ```python and ```. It is tried as it stands, on tests that you do not see."
)
FUNCTION = (
    "The answer is Python 3 code that defines {function}, in one block fenced by ```python and ```. It is called as it "
    "stands, on tests that you do not see."
)
REWRITE_SYSTEM = (
    "You change problems so that they become easier or harder for those who solve them now. Write one new problem of "
    "the same kind, complete by itself, with one short answer, and a Python program that computes the answer and "
    "prints it alone. The program is executed; it may take a few seconds. Think first, then answer with one JSON "
    'object: {"question": "...", "program": "..."}.'
)


def asked(payload: Mapping[str, Any], packages: Sequence[str] | None, style: str) -> str:
    """The user's message. `packages` are what code may import besides the standard library, None without the tool.

    `style` is `dataset.prompt`: compact gives the question alone.
    """
    question = stated(payload)
    if style == "compact":
        return question
    told = [] if packages is None else [f"{USE} Installed: {', '.join(packages)}." if packages else USE]
    return "\n\n".join([question, " ".join([THINK, *told, _form(payload)])])


def stated(payload: Mapping[str, Any]) -> str:
    """The question, with its choices, or with a program's examples and starter code."""
    choices = "".join(f"\n{CHOICES[i]}. {text}" for i, text in enumerate(payload.get("choices", ())))
    return statement(payload) + (f"\n{choices}" if choices else "")


def _form(payload: Mapping[str, Any]) -> str:
    """The form that the answer must have."""
    if is_program(payload):
        function = payload.get("function")
        return FUNCTION.format(function=function) if function else PROGRAM
    return LETTER if is_choice(payload) else VALUE

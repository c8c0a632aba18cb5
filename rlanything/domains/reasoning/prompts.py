"""The prompt of a problem. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlanything.domains.reasoning.answers import CHOICES
from rlanything.domains.reasoning.problems import is_choice

THINK = "Think about the problem step by step."
USE = (
    "You can run Python code with the tool code_interpreter: use it to calculate, to try, and to check what you found. "
    "Names last from one call to the next."
)
VALUE = "Give the final answer, without words or units around it, in \\boxed{}."
LETTER = "Give the letter of the right choice in \\boxed{}."


def asked(payload: Mapping[str, Any], packages: Sequence[str] | None, style: str) -> str:
    """The user's message. `packages` are what code may import besides the standard library, None without the tool.

    `style` is `dataset.prompt`: compact gives the question alone.
    """
    question: str = payload["question"]
    if choices := payload.get("choices"):
        question += "\n" + "".join(f"\n{CHOICES[i]}. {text}" for i, text in enumerate(choices))
    if style == "compact":
        return question
    told = [] if packages is None else [f"{USE} Installed: {', '.join(packages)}." if packages else USE]
    return "\n\n".join([question, " ".join([THINK, *told, LETTER if is_choice(payload) else VALUE])])

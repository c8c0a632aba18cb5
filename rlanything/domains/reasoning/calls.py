"""Tool calls as models write them: the hermes form (a JSON object) and the XML form of newer Qwen models. Pure.

`<tool_call>{"name": ..., "arguments": {"code": ...}}</tool_call>`, or
`<tool_call><function=NAME><parameter=code>...</parameter></function></tool_call>`. Which one a model writes is told by
the call itself. A call that cannot be read is kept with what is wrong, so that the environment can answer it.
Source: chat templates of Qwen2.5, Qwen3 and Qwen3-Coder.
"""

import json
import re
from dataclasses import dataclass

from rlanything.domains.answers import without_thoughts
from rlanything.types import Tool

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TOOL_NAME, ARGUMENT = "code_interpreter", "code"
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "Run Python code. Names last from one call to the next. Returns what the code prints, and the "
        "value of its last expression.",
        "parameters": {
            "type": "object",
            "properties": {ARGUMENT: {"type": "string", "description": "The code to run."}},
            "required": [ARGUMENT],
        },
    },
}

_FUNCTION = re.compile(r"\s*<function=([^>\s]+)\s*>(.*)", re.DOTALL)
_PARAMETER = re.compile(
    r"\s*<parameter=([^>\s]+)\s*>\n?(.*?)\n?</parameter>(?=\s*(?:</function>|<parameter=|</tool_call>|\Z))", re.DOTALL
)
_ANOTHER = re.compile(r"(?:\s|</function>|</parameter>)*(?=\{|<function=)")  # call within the same tags
_NEXT = re.compile(r"</tool_call>\s*<tool_call>\s*<function=")
_FENCED = re.compile(r"\s*(?:```|~~~)[ \t]*(?:python|py)?[ \t]*\n(.*?)\n?(?:```|~~~)\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call: its code, or what is wrong with it."""

    code: str = ""
    error: str = ""


def read_calls(text: str) -> list[Call]:
    """The calls of a response, in order, without those in its thoughts."""
    calls, left = [], without_thoughts(text)
    while OPEN in left:
        call, left = _read(left.partition(OPEN)[2])
        calls.append(call)
    return calls


def call_text(code: str) -> str:
    """A call in the hermes form."""
    arguments = json.dumps({"name": TOOL_NAME, "arguments": {ARGUMENT: code}}, ensure_ascii=False)
    return f"{OPEN}\n{arguments}\n{CLOSE}"


def _read(text: str) -> tuple[Call, str]:
    """The call that a text begins with, and what follows it. Code may hold the marks of a call itself."""
    inner, _, after = text.partition(CLOSE)
    try:
        if function := _FUNCTION.match(text):
            name, code, end = _of_xml(function)
        else:
            name, code, end = _of_json(text)
    except ValueError as error:
        return Call(error=str(error)), after if OPEN not in inner else OPEN + inner.partition(OPEN)[2] + CLOSE + after
    after = text[end:]
    if another := _ANOTHER.match(after):
        after = OPEN + after[another.end() :]
    if name != TOOL_NAME:
        return Call(error=f"there is no tool {name!r:.80}; the only one is {TOOL_NAME}"), after
    if not isinstance(code, str) or not code.strip():
        return Call(error=f"{ARGUMENT}: expected a text that is not empty"), after
    fenced = _FENCED.fullmatch(code)
    return Call(code=fenced[1] if fenced else code), after


def _of_xml(function: re.Match[str]) -> tuple[object, object, int]:
    """Name, code and end of a call in XML. Raises ValueError."""
    parameter = _PARAMETER.match(function[2])
    if parameter is None or parameter[1] != ARGUMENT:
        raise ValueError(f"expected <parameter={ARGUMENT}>...</parameter> after <function=...>")
    if _NEXT.search(parameter[2]):  # it reaches into the next call
        raise ValueError(f"<parameter={ARGUMENT}> has no </parameter>")
    return function[1], parameter[2], function.start(2) + parameter.end()


def _of_json(text: str) -> tuple[object, object, int]:
    """Name, code and end of a call in JSON. Raises ValueError."""
    expected = f'expected {{"name": "{TOOL_NAME}", "arguments": {{"{ARGUMENT}": "..."}}}}'
    try:
        call, end = json.JSONDecoder(strict=False).raw_decode(text, len(text) - len(text.lstrip()))
        arguments = call["arguments"]
        if isinstance(arguments, str):  # some templates write them as JSON in a text
            arguments = json.loads(arguments, strict=False)
        return call["name"], arguments[ARGUMENT], end
    except RecursionError as error:
        raise ValueError(f"the call is nested too deeply; {expected}") from error
    except ValueError as error:
        raise ValueError(f"the call is no JSON ({error}); {expected}") from error
    except KeyError as error:
        raise ValueError(f"the call has no {error}; {expected}") from error
    except TypeError as error:
        raise ValueError(f"the call has another form; {expected}") from error

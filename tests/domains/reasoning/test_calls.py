"""Tool calls: every form that models write is read, and nothing is dropped silently."""

import json

import pytest

from rlanything.domains.reasoning.calls import TOOL_NAME, call_text, read_calls

CODE = "x = 1\nprint(x)"


def hermes(arguments, name=TOOL_NAME):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def xml(code, name=TOOL_NAME, parameter="code"):
    return f"<tool_call>\n<function={name}>\n<parameter={parameter}>\n{code}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        call_text(CODE),
        hermes({"code": CODE}),
        hermes(json.dumps({"code": CODE})),
        hermes({"code": CODE, "timeout": 3}),
        f"I calculate.\n{hermes({'code': CODE})}",
        f"<think>maybe {hermes({'code': 'draft'})}</think>{hermes({'code': CODE})}",
        hermes({"code": CODE}).replace("\n</tool_call>", "</tool_call>"),
        hermes({"code": CODE}).removesuffix("</tool_call>"),  # the end of the turn closed it
        hermes({"code": CODE}).replace("\\n", "\n"),  # a line break within a JSON text
        hermes({"code": f"```python\n{CODE}\n```"}),
        hermes({"code": f"```\n{CODE}\n```\n"}),
        hermes({"code": CODE}) + "\nand so on",
        xml(CODE),
        f"Let me see.\n{xml(CODE)}",
        xml(CODE).removesuffix("\n</function>\n</tool_call>"),
        xml(CODE).replace("\n<function", " <function"),
    ],
)
def test_a_call_is_read_in_every_form(text):
    [call] = read_calls(text)
    assert (call.code, call.error) == (CODE, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<tool_call>", "no JSON"),
        ("<tool_call></tool_call>", "no JSON"),
        ("<tool_call>print(1)</tool_call>", "no JSON"),
        ("<tool_call>{'name': 'code_interpreter'}</tool_call>", "no JSON"),
        ('<tool_call>{"name": "code_interpreter"', "no JSON"),
        ('<tool_call>{"name": "code_interpreter"}</tool_call>', "no 'arguments'"),
        ('<tool_call>{"arguments": {"code": "1"}}</tool_call>', "no 'name'"),
        ('<tool_call>["code_interpreter"]</tool_call>', "another form"),
        ("<tool_call>3</tool_call>", "another form"),
        ("<tool_call>null</tool_call>", "another form"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
        (hermes({}), "no 'code'"),
        (hermes({"source": CODE}), "no 'code'"),
        (hermes([CODE]), "another form"),
        (hermes(CODE), "no JSON"),
        (hermes(None), "another form"),
        (hermes({"code": ""}), "not empty"),
        (hermes({"code": "  \n"}), "not empty"),
        (hermes({"code": 3}), "not empty"),
        (hermes({"code": None}), "not empty"),
        (hermes({"code": [CODE]}), "not empty"),
        (hermes({"code": CODE}, "python"), "no tool 'python'"),
        (hermes({"code": CODE}, ""), "no tool ''"),
        (hermes({"code": CODE}, 3), "no tool 3"),
        (xml(CODE, name="search"), "no tool 'search'"),
        (xml(CODE, parameter="source"), "expected <parameter=code>"),
        ("<tool_call><function=code_interpreter></function></tool_call>", "expected <parameter=code>"),
        ("<tool_call><function=code_interpreter><parameter=code>\nx = 1", "expected <parameter=code>"),
        (xml(" "), "not empty"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(text, said):
    [call] = read_calls(text)
    assert said in call.error and not call.code


def test_all_calls_of_a_response_are_kept_in_order():
    text = f"{hermes({'code': 'a'})}\n{hermes({'source': 'b'})}\nthen {xml('c')}{hermes({'code': 'd'})}"
    calls = read_calls(text)
    assert [call.code for call in calls] == ["a", "", "c", "d"] and "no 'code'" in calls[1].error


def test_marks_of_a_call_within_code_are_code():
    code = 'print("<tool_call>", "</tool_call>")'
    assert [call.code for call in read_calls(hermes({"code": code}) * 2)] == [code, code]
    assert [call.code for call in read_calls(xml(code))] == [code]
    assert [call.code for call in read_calls(xml('print("</parameter>")'))] == ['print("</parameter>")']


def test_marks_of_a_thought_within_code_are_code():
    code = "print('<think>a</think>')"
    assert [call.code for call in read_calls("so: " + hermes({"code": code}))] == [code]
    assert read_calls("<think>never closed " + hermes({"code": code})) == []


def test_a_broken_call_does_not_swallow_the_next_one():
    calls = read_calls(f"<tool_call>\n{{broken\n{hermes({'code': CODE})}")
    assert [bool(call.error) for call in calls] == [True, False] and calls[1].code == CODE
    calls = read_calls(f"{xml('x = 1').partition('</parameter>')[0]}</tool_call>\n{xml(CODE)}")
    assert [bool(call.error) for call in calls] == [True, False] and calls[1].code == CODE


def test_two_calls_within_one_pair_of_tags_are_both_read():
    first, second = (hermes({"code": code}).split("\n")[1] for code in ("a", "b"))
    assert [call.code for call in read_calls(f"<tool_call>\n{first}\n{second}\n</tool_call>")] == ["a", "b"]
    inner = [xml(code).removeprefix("<tool_call>").removesuffix("</tool_call>") for code in ("a", "b")]
    assert [call.code for call in read_calls(f"<tool_call>{inner[0]}{inner[1]}</tool_call>")] == ["a", "b"]
    assert [call.error for call in read_calls(f"<tool_call>\n{first}\n{{b\n</tool_call>")][0] == ""
    assert len(read_calls(f"<tool_call>\n{first}\n{{b\n</tool_call>")) == 2


def test_a_later_thought_calls_nothing():
    text = f"<think>a</think>so\n<think>{hermes({'code': 'draft'})}</think>\n{hermes({'code': CODE})}"
    assert [call.code for call in read_calls(text)] == [CODE]
    assert [call.code for call in read_calls(f"so\n<think>{hermes({'code': 'draft'})}")] == []


@pytest.mark.parametrize("text", ["", "The answer is \\boxed{3}.", "<think><tool_call></think>no", "tool_call"])
def test_what_is_no_call_is_none(text):
    assert read_calls(text) == []

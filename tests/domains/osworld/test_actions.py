"""What a model writes becomes the action that it means, or an invalid action with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlanything.domains.osworld.actions import (
    LAST,
    NEEDS,
    Action,
    InvalidAction,
    call_text,
    read_arguments,
    read_response,
    spoken,
)


def response(arguments: object, name: str = "computer_use") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [500, 20]}, Action(kind="left_click", coordinate=(500, 20))),
        ({"action": "left_click"}, Action(kind="left_click")),
        ({"action": "left_click", "coordinate": None}, Action(kind="left_click")),
        ({"action": "left_click", "coordinate": [1000, 0.7]}, Action(kind="left_click", coordinate=(999, 0))),
        ({"action": "triple_click", "coordinate": [1, 2]}, Action(kind="triple_click", coordinate=(1, 2))),
        ({"action": "key", "keys": ["ctrl", "c"]}, Action(kind="key", keys=("ctrl", "c"))),
        ({"action": "key", "keys": "ctrl+shift+T"}, Action(kind="key", keys=("ctrl", "shift", "t"))),
        ({"action": "key", "keys": ["Control_L", "Page_Down"]}, Action(kind="key", keys=("ctrl", "pagedown"))),
        ({"action": "key", "keys": ["+"]}, Action(kind="key", keys=("shift", "="))),
        ({"action": "key", "keys": ["ctrl++"]}, Action(kind="key", keys=("ctrl", "shift", "="))),
        ({"action": "key", "keys": ["ctrl", "shift", "plus"]}, Action(kind="key", keys=("ctrl", "shift", "="))),
        ({"action": "key", "keys": ["<"]}, Action(kind="key", keys=("shift", ","))),
        ({"action": "key", "keys": ["A"]}, Action(kind="key", keys=("shift", "a"))),
        ({"action": "key", "keys": ["ctrl+A"]}, Action(kind="key", keys=("ctrl", "a"))),
        ({"action": "key", "keys": [" "]}, Action(kind="key", keys=("space",))),
        ({"action": "key", "keys": ["Return"]}, Action(kind="key", keys=("enter",))),
        ({"action": "key", "keys": ["apps"]}, Action(kind="key", keys=("menu",))),
        ({"action": "type", "text": "a\n<b> ß中😀"}, Action(kind="type", text="a\n<b> ß中😀")),
        ({"action": "scroll", "pixels": -5}, Action(kind="scroll", pixels=-5)),
        ({"action": "hscroll", "pixels": 99999}, Action(kind="hscroll", pixels=2000)),
        ({"action": "wait", "time": 60}, Action(kind="wait", time=10.0)),
        ({"action": "terminate", "status": "failure"}, Action(kind="terminate", status="failure")),
    ],
)
def test_arguments_mean_an_action(arguments: dict, action: Action) -> None:
    assert read_response(f"Action: do it.\n{response(arguments)}") == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no tool call"),
        ("terminate with failure", "no tool call"),
        ('<tool_call>{"name": "computer_use"', "no JSON"),
        ('<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": 1}}', "not closed"),
        (response({"action": "wait", "time": 1}) * 2, "more than one tool call"),
        (f"{response({'action': 'wait', 'time': 1})}</think>", "no tool call"),
        ("<tool_call>look</tool_call>", "no JSON"),
        ("<tool_call>[1]</tool_call>", "expected .*computer_use"),
        (response({"action": "wait", "time": 1}, "browser_use"), "expected .*computer_use"),
        (response("{"), "no JSON"),
        (response({"action": "fail"}), "action: found 'fail', expected one of key"),
        (response({"action": ["left_click"]}), "action: found"),
        (response({"action": "mouse_move"}), "mouse_move: coordinate is missing"),
        (response({"action": "left_click", "coordinate": [1]}), "coordinate: found"),
        (response({"action": "left_click", "coordinate": [1, 1001]}), "coordinate: found"),
        (response({"action": "left_click", "coordinate": [-1, 1]}), "coordinate: found"),
        (response({"action": "left_click", "coordinate": ["1", "2"]}), "coordinate: found"),
        (response({"action": "left_click", "coordinate": [True, 1]}), "coordinate: found"),
        (response({"action": "left_click", "coordinate": [float("nan"), 1]}), "coordinate: found"),
        (response({"action": "key", "keys": ["hyper"]}), "keys: found 'hyper'"),
        (response({"action": "key", "keys": []}), "keys: found"),
        (
            response({"action": "key", "keys": ["ctrl", "\u00fc"]}),
            "keys: found '\u00fc', expected a key of an American",
        ),
        (response({"action": "type", "text": 5}), "text: found 5"),
        *((response({"action": "type", "text": f"a{c}b"}), "no keyboard types") for c in "\0\b\x1b\x7f\x85"),
        (response({"action": "type", "text": "\ud83d"}), "half of a surrogate pair"),
        (response({"action": "scroll"}), "scroll: pixels is missing"),
        (response({"action": "terminate", "status": "done"}), "status: found 'done'"),
        (response({"action": "terminate"}), "terminate: status is missing"),
    ],
)
def test_what_is_no_action_has_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidAction, match=reason):
        read_response(text)


def test_thoughts_are_not_read_and_the_line_before_the_call_is() -> None:
    call = response({"action": "wait", "time": 1})
    text = f"<think>{response({'action': 'terminate', 'status': 'failure'})}</think>\nAction: wait\n for it.\n{call}"
    assert read_response(text).kind == "wait" and spoken(text) == "wait for it."
    assert spoken("click Wi-Fi\n" + call) == "click Wi-Fi" and spoken("no call") == "no call"


def test_arguments_may_be_json_in_a_text() -> None:
    assert read_response(response('{"action": "wait", "time": 2}')).time == 2.0


@pytest.mark.parametrize("size", [(192, 160), (1920, 1080), (1, 1)])
def test_every_coordinate_is_a_pixel_of_the_screen(size: tuple[int, int]) -> None:
    corners = [Action(kind="left_click", coordinate=at).point(*size) for at in ((0, 0), (LAST, LAST))]
    assert corners == [(0, 0), (size[0] - 1, size[1] - 1)]
    assert Action(kind="left_click").point(*size) is None


@given(
    st.sampled_from(sorted(NEEDS)),
    st.tuples(st.integers(0, LAST), st.integers(0, LAST)),
    st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\t\n\r"), min_size=1, max_size=40),
    st.integers(-2000, 2000),
)
def test_an_action_survives_being_written_and_read(kind: str, at: tuple[int, int], text: str, pixels: int) -> None:
    values = {"coordinate": at, "text": text, "pixels": pixels, "keys": ("ctrl", "a"), "time": 1.5, "status": "success"}
    needed, optional = NEEDS[kind]
    action = Action(kind=kind, **{name: values[name] for name in (*needed, *optional)})
    assert read_arguments(json.loads(action.to_json())) == action
    assert read_response(f"thoughts</think>do it\n{call_text(action)}") == action


def test_typed_text_may_hold_what_frames_a_call() -> None:
    action = Action(kind="type", text="</tool_call> </think> }}")
    assert read_response(f"<think>so</think>do it\n{call_text(action)}") == action

"""Conversations of a file are read in every form that tools write, and a bad one is named by its row."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from chat_families import FAMILIES, write_tokenizer

from rlanything.config.schema import ModelConfig
from rlanything.conversations import encode, read_conversations
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError

LOOK = {"type": "function", "function": {"name": "look", "arguments": {"at": "mug"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
MESSAGES = [
    {"role": "system", "content": "You act in a room\u2028with a mug."},
    {"role": "user", "content": "Find a mug."},
    {"role": "assistant", "content": "", "tool_calls": [LOOK]},
    {"role": "tool", "content": "a mug"},
    {"role": "assistant", "content": "found"},
]


def write(path, form):
    """The same conversation in one of the forms that tools write."""
    row = {"messages": MESSAGES, "tools": TOOLS}
    written = {**LOOK, "function": {"name": "look", "arguments": json.dumps({"at": "mug"})}}
    as_text = [{**m, "tool_calls": [written]} if "tool_calls" in m else m for m in MESSAGES]
    match form:
        case "json":
            path.write_text(json.dumps([row]))
        case "lines":
            path.write_text((json.dumps(row, ensure_ascii=False) + "\n") * 2, encoding="utf-8")
        case "texts":
            path.write_text(json.dumps({"messages": json.dumps(MESSAGES), "tools": json.dumps(TOOLS)}))
        case "arguments as text":
            path.write_text(json.dumps({**row, "messages": as_text}))
        case "parquet":  # each message has all keys, most of them null
            table = pyarrow.Table.from_pylist([{"messages": as_text, "tools": json.dumps(TOOLS), "ability": None}])
            pyarrow.parquet.write_table(table, path)
        case "nulls":
            keys = ("role", "content", "tool_calls", "name")
            path.write_text(json.dumps({**row, "messages": [{k: m.get(k) for k in keys} for m in MESSAGES]}))


@pytest.mark.parametrize("form", ["json", "lines", "texts", "arguments as text", "parquet", "nulls"])
def test_every_form_gives_the_same_conversation(tmp_path, form):
    file = tmp_path / ("said.parquet" if form == "parquet" else "said.jsonl")
    write(file, form)
    found = read_conversations(file)[-1]
    assert [m | {"content": m.get("content") or ""} for m in found.messages] == MESSAGES
    assert found.tools == TOOLS and found.trained == [False, False, True, False, True]


def test_a_null_argument_of_a_call_is_kept_where_the_file_means_it(tmp_path):
    call = {"id": None, "type": "function", "function": {"name": "look", "arguments": {"at": None, "far": True}}}
    messages = [{**m, "tool_calls": [call]} if "tool_calls" in m else m for m in MESSAGES]
    (tmp_path / "a.json").write_text(json.dumps([{"messages": messages, "tools": TOOLS}]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"messages": messages}]), tmp_path / "a.parquet")
    (of_json,), (of_parquet,) = (read_conversations(tmp_path / name) for name in ("a.json", "a.parquet"))
    [read], [filled] = (c.messages[2]["tool_calls"] for c in (of_json, of_parquet))
    assert read == {"type": "function", "function": {"name": "look", "arguments": {"at": None, "far": True}}}
    assert filled["function"]["arguments"] == {"far": True}, "Parquet fills what an object lacks"


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([{"role": "user", "content": "x\ud800"}, {"role": "assistant", "content": "y"}], "half a character"),
        (
            [MESSAGES[1], {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": {}}}]}],
            "expected",
        ),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_texts_and_calls_that_no_template_renders_are_named_by_their_row(tmp_path, messages, fault):
    (tmp_path / "a.json").write_text(json.dumps([{"messages": messages}]))
    with pytest.raises(ConfigError, match=rf"a.json, row 0: .*{fault}"):
        read_conversations(tmp_path / "a.json")


def test_a_call_of_a_tool_that_the_row_lacks_is_named(tmp_path):
    named = {**LOOK, "function": {"name": "lok", "arguments": {}}}
    messages = [{**m, "tool_calls": [LOOK, named]} if "tool_calls" in m else m for m in MESSAGES]
    file = tmp_path / "a.json"
    bare = [tool["function"] for tool in TOOLS]
    take = {"type": "function", "function": {"name": "take"}}
    for tools in (TOOLS + [take], bare + [take], json.dumps([*TOOLS, take])):
        file.write_text(json.dumps([{"messages": MESSAGES, "tools": tools}, {"messages": messages, "tools": tools}]))
        fault = r"row 1: message 3 \(assistant\): tool_calls: found a call of 'lok', expected one of .*\(look, take\)"
        with pytest.raises(ConfigError, match=fault):
            read_conversations(file)
    file.write_text(json.dumps([{"messages": messages, "tools": None}, {"messages": messages, "tools": []}]))
    assert len(read_conversations(file)) == 2, "a row without tools may call any: its messages may describe them"


@pytest.mark.parametrize("tools", [["look"], [{"type": "function"}], {"name": "look"}, 3])
def test_tools_without_names_are_refused(tmp_path, tools):
    (tmp_path / "a.json").write_text(json.dumps([{"messages": MESSAGES, "tools": tools}]))
    with pytest.raises(ConfigError, match="a.json, row 0: tools: found .*, expected a list of .*function"):
        read_conversations(tmp_path / "a.json")


def test_a_parquet_file_without_messages_is_named_by_its_columns(tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["x"], "response": ["y"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="a.parquet, row 0: found the keys prompt, response; expected .*messages"):
        read_conversations(tmp_path / "a.parquet")


def test_rows_of_another_layout_are_named_by_their_keys(tmp_path):
    rows = [
        ({"conversations": []}, "found the keys conversations; expected"),
        ({"messages": [{"from": "human", "value": "x"}]}, "the keys from, value; expected role .* ShareGPT calls them"),
        ({"functions": [{"name": "f"}], "messages": []}, "functions: is not learned; write them as tools"),
        ({"system": "s", "messages": []}, "system: is not learned; make it the first message"),
        ({"images": ["a.png"], "messages": []}, "images: is not learned; put each into a message's content"),
        ({"messages": [{"speaker": "user", "content": "x"}]}, "the keys speaker, content; expected role"),
    ]
    for row, message in rows:
        (tmp_path / "a.json").write_text(json.dumps([row]))
        with pytest.raises(ConfigError, match=f"a.json, row 0: .*{message}"):
            read_conversations(tmp_path / "a.json")


@pytest.mark.parametrize("text", ["", "[]", '{"messages": [', '{"text": "x"}', "null", '{"messages": "no JSON"}'])
def test_a_file_that_holds_no_conversation_is_named(tmp_path, text):
    (tmp_path / "said.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=f"data={tmp_path}/said.jsonl"):
        read_conversations(tmp_path / "said.jsonl")


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (["user", "assistant", "user", "user", "assistant"], "line 2: expected user and assistant in turns"),
        (["assistant", "user"], "line 2: expected user and assistant in turns"),
        (["system"], "found system"),
        (["user", "tool", "assistant"], "found user, tool, assistant"),
        (["user", "assistant", "tool"], "found user, assistant, tool"),
        (["user", "robot"], "found user, robot"),
        ([], "found no message"),
    ],
)
def test_a_conversation_that_does_not_alternate_is_named(tmp_path, roles, message):
    good = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    bad = [{"role": role, "content": "x"} for role in roles]
    file = tmp_path / "said.jsonl"
    file.write_text("\n".join(json.dumps({"messages": m}) for m in (good, bad)) + "\n")
    with pytest.raises(ConfigError, match=message):
        read_conversations(file)


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"content": None}, r"message 2 \(assistant\): content: found None, expected a text or parts"),
        ({"content": 3}, "content: found 3, expected a text or parts"),
        ({"content": ["x"]}, r"content: found \['x'\], expected a text or parts"),
        ({"content": [{"type": "text", "text": 5}]}, "content: found the part .*, expected .*text"),
        ({"content": [{"type": "image"}]}, "content: found the part .*, expected .*FILE"),
        ({"content": [{"type": "image", "image": {"path": "x"}}]}, "content: found the part"),
        (
            {"content": "y", "reasoning_content": "so"},
            "reasoning_content: is not learned; put",
        ),
        ({"content": "y", "thought": "so"}, "thought: is not learned; put the thought into content"),
        ({"content": "", "function_call": {"name": "f"}}, "function_call: is not learned; write it as tool_calls"),
        ({"content": "", "refusal": "no"}, "refusal: is not learned; put it into content"),
        ({"content": "y", "loss": False}, "loss: every assistant message is learned"),
        ({"content": "y", "weight": "0"}, "weight: every assistant message is learned"),
        ({"content": "y", "weight": 0}, "weight: every assistant message is learned"),
        ({"content": "y", "train": False}, "train: every assistant message is learned"),
        ({"content": "", "tool_calls": ["look"]}, "tool_calls: found 'look', expected .*function"),
        (
            {"content": "", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "[1]"}}]},
            'tool_calls: found .*"arguments": {...}',
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_named(tmp_path, message, fault):
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", **message}]}))
    with pytest.raises(ConfigError, match=f"data={file}, line 1: .*{fault}"):
        read_conversations(file)


def test_a_user_message_with_tool_calls_is_named(tmp_path):
    bad = {"role": "user", "content": "x", "tool_calls": [{"function": {"arguments": {}}}]}
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": [bad, {"role": "assistant", "content": "y"}]}))
    with pytest.raises(ConfigError, match="line 1: message 1 .user.: tool_calls: only an assistant message"):
        read_conversations(file)


def test_conversations_with_tools_train_what_the_template_shows(tmp_path):
    chat = Chat(ModelConfig(path=str(write_tokenizer(FAMILIES["qwen3"], tmp_path / "model"))))
    function = {"name": "look", "description": ".", "parameters": {"type": "object", "properties": {}}}
    calls = [{"type": "function", "function": {"name": "look", "arguments": {"at": at}}} for at in ("mug", "cup")]
    messages = [
        {"role": "system", "content": "You act in a room."},
        {"role": "user", "content": "Find a mug."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "a mug"},
        {"role": "tool", "content": "a cup"},
        {"role": "user", "content": "Which?"},
        {"role": "assistant", "content": "the mug"},
    ]
    tools = [{"type": "function", "function": function}]
    (tmp_path / "said.jsonl").write_text(json.dumps({"messages": messages, "tools": tools}))
    conversation = read_conversations(tmp_path / "said.jsonl")[0]
    sample = encode(chat, conversation)
    rendered = chat.prompt([*messages, {"role": "user", "content": "x"}], tools).ids
    assert sample.ids.tolist() == rendered[: len(sample.ids)]
    trained = chat.tokenizer.decode(sample.ids[sample.weights > 0])
    assert trained.count("<|im_end|>") == 2 and trained.count("<tool_call>") == 2 and "mug" in trained
    assert "a cup" not in trained and "Which" not in trained

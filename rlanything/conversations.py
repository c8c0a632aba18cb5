"""Conversations to learn from: read from a file, checked, and encoded as the tokens that a rollout would have had."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlanything.domains.parts import Conversation
from rlanything.domains.rows import BadProblem, check_characters, read_rows
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.errors import ConfigError, TaskError
from rlanything.types import Message, Prompt, Sample

ARGUMENTS = "arguments"  # of a tool call
LEARNED = ("weight", "train", "trainable", "loss", "loss_mask")  # keys by which other trainers leave messages out
_IMAGES = 'put each into a message\'s content, as {"type": "image", "image": "FILE"}'
_THOUGHT = "put the thought into content, as the model writes it"
# Keys of other trainers' files. What they hold would be lost.
UNREAD_OF_ROWS = {
    "functions": "write them as tools", "system": "make it the first message", "images": _IMAGES, "image": _IMAGES,
    "videos": "leave such rows out", "audios": "leave such rows out",
}  # fmt: skip
UNREAD_OF_MESSAGES = {
    "reasoning_content": _THOUGHT, "reasoning": _THOUGHT, "reasoning_details": _THOUGHT, "thinking": _THOUGHT,
    "thought": _THOUGHT, "function_call": "write it as tool_calls", "refusal": "put it into content",
    "images": _IMAGES, "audio": "leave such rows out",
}  # fmt: skip
LETTERS = {"system": "s", "user": "u", "assistant": "a", "tool": "t"}
TURNS = re.compile("s?ua((t+u?|u)a)*")  # the order of a conversation's roles, by their letters


def encode(chat: Chat, conversation: Conversation) -> Sample:
    """A conversation as one sample, with the tokens that a rollout of it would have had.

    Raises ChatError, with the conversation's source, if the chat template cannot render it.
    """
    messages, tools = conversation.messages, conversation.tools
    prompt, response = Prompt(ids=[]), list[int]()
    weights: list[float] = []
    start = 0
    try:
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                render = chat.follow_up if start else chat.prompt
                before = render(messages[start:i], tools)
                prompt, response = prompt.extended(response, before), chat.assistant(message, tools)
                weights += [0.0] * len(before.ids) + [float(conversation.trained[i])] * len(response)
                start = i + 1
    except ChatError as error:
        raise ChatError(f"{conversation.source}: {error}" if conversation.source else str(error)) from error
    ids, zeros = np.asarray([*prompt.ids, *response], np.int64), np.zeros(len(weights), np.float32)
    return Sample(ids, np.asarray(weights, np.float32), zeros, zeros, conversation.key, prompt.images)


def encode_file(path: Path, chat: Chat) -> list[Sample]:
    """The samples of a file of conversations. Raises ConfigError or ChatError naming the row."""
    return [encode(chat, conversation) for conversation in read_conversations(path)]


def read_conversations(path: Path) -> list[Conversation]:
    """The conversations of a JSON, JSON lines or Parquet file, one a row. Raises ConfigError naming the row.

    A row holds `messages` and may hold `tools`, both as the transformers library's chat templates take them, or as JSON
    in a text. A null means that a message lacks the key. In arguments of a tool call, and in `tools`, only Parquet's
    nulls mean that. Arguments may be JSON in a text, as OpenAI's API has it.
    """
    try:
        rows = read_rows(path, "messages")
    except TaskError as error:
        raise ConfigError(f"data={error}") from error
    found = []
    for where, row in rows:
        source = f"data={path}, {where}"
        try:
            found.append(replace(conversation_of(row, filled=path.suffix == ".parquet"), source=source))
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from error
    if not found:
        raise ConfigError(f"data={path}: holds no conversation")
    return found


def conversation_of(row: Any, filled: bool = False) -> Conversation:
    """The conversation of a row; `filled`: nulls may fill any object. Raises ConfigError, which says why."""
    try:
        return _conversation(_without_nulls(row) if filled else row)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f'expected {{"messages": [...]}} ({error!r})') from error


def _conversation(row: dict[str, Any]) -> Conversation:
    if isinstance(row, dict) and "messages" not in row:
        raise ConfigError(f'found the keys {", ".join(map(str, row))}; expected {{"messages": [...]}}')
    _check_unread("", row, UNREAD_OF_ROWS)
    messages, tools = _without_nulls(_value(row["messages"]), ARGUMENTS), _value(row.get("tools")) or []
    _check_characters([messages, tools])
    if other := next((m for m in messages if isinstance(m, dict) and "role" not in m), None):
        raise ConfigError(
            f"a message has the keys {', '.join(map(str, other))}; expected role (system, user, assistant or tool) and "
            "content" + ("; ShareGPT calls them from (human, gpt) and value" if "from" in other else "")
        )
    roles = [m["role"] for m in messages]
    if not TURNS.fullmatch("".join(LETTERS.get(role, "?") for role in roles)):
        raise ConfigError(
            "expected user and assistant in turns, the assistant last, after at most one system message; tool messages "
            f"may follow an assistant message; found {', '.join(map(str, roles)) or 'no message'}"
        )
    known = _names(tools)
    checked = [_message(f"message {i} ({m['role']})", m, known) for i, m in enumerate(messages, 1)]
    return Conversation(messages=checked, trained=[role == "assistant" for role in roles], tools=tools)


def _check_unread(where: str, held: dict[str, Any], remedies: Mapping[str, str]) -> None:
    if key := next((key for key in remedies if held.get(key)), ""):
        raise ConfigError(f"{where}{key}: is not learned; {remedies[key]}")


def _check_characters(value: Any) -> None:
    try:
        check_characters(value)
    except BadProblem as error:
        raise ConfigError(str(error)) from error


def _message(where: str, message: dict[str, Any], known: Sequence[str]) -> Message:
    """A message, checked; `known` are the names of the row's tools. Raises ConfigError."""
    content, calls = message.get("content"), message.get("tool_calls") or []
    parts = [] if isinstance(content, str) or (calls and content is None) else content
    if not isinstance(parts, list) or not all(isinstance(p, dict) and "type" in p for p in parts):
        raise ConfigError(f"{where}: content: found {content!r}, expected a text or parts")
    for part in parts:
        kind = part["type"]
        if kind not in ("text", "image") or not isinstance(part.get(kind), str):
            raise ConfigError(
                f'{where}: content: found the part {str(part)[:80]}, expected {{"type": "text", "text": ...}} or '
                '{"type": "image", "image": "FILE"}'
            )
    _check_unread(f"{where}: ", message, UNREAD_OF_MESSAGES)
    if unlearned := next((key for key in LEARNED if str(message.get(key)).lower() in ("0", "0.0", "false")), ""):
        if message["role"] == "assistant":
            raise ConfigError(f"{where}: {unlearned}: every assistant message is learned; leave out row or key")
    if calls and message["role"] != "assistant":
        raise ConfigError(f"{where}: tool_calls: only an assistant message may have them")
    return {**message, "tool_calls": _calls(where, calls, known)} if calls else message


def _calls(where: str, calls: Sequence[Any], known: Sequence[str]) -> list[dict[str, Any]]:
    """A message's calls, their arguments read. A row without tools may call any. Raises ConfigError."""
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        arguments = _value(function.get(ARGUMENTS)) if isinstance(function, dict) else None
        named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if not isinstance(function, dict) or not named or not isinstance(arguments, dict):
            raise ConfigError(
                f"{where}: tool_calls: found {call!r}, expected "
                '{"type": "function", "function": {"name": ..., "arguments": {...}}}'
            )
        if known and function["name"] not in known:
            raise ConfigError(
                f"{where}: tool_calls: found a call of {function['name']!r}, expected one of the row's tools "
                f"({', '.join(map(str, known))})"
            )
        read.append({**call, "function": {**function, ARGUMENTS: arguments}})
    return read


def _names(tools: Any) -> list[str]:
    """The names of a row's tools, which are written as OpenAI's API has them, or as functions alone."""
    try:
        return [(tool.get("function") or tool)["name"] for tool in tools]
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(
            f"tools: found {str(tools)[:80]}, expected a list of "
            '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
        ) from error


def _value(value: Any) -> Any:
    """A value that may be JSON in a text. Raises ValueError if the text is no JSON."""
    return json.loads(value) if isinstance(value, str) else value


def _without_nulls(value: Any, but: str = "") -> Any:
    """Leave out keys whose value is null, but not in objects of the key `but`.

    Parquet gives each object the keys of all objects in its place.
    """
    if isinstance(value, dict):
        present = {key: inner for key, inner in value.items() if inner is not None}
        return {key: inner if key == but else _without_nulls(inner, but) for key, inner in present.items()}
    return [_without_nulls(inner, but) for inner in value] if isinstance(value, list) else value

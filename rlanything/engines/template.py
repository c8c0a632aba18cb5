"""A model's chat template as text: what it renders, and where an assistant's turn begins and ends in it.

A template is a Jinja program that comes with the model, and each family has its own rules. This module learns them by
rendering short conversations that contain a mark; it never reads the program.
"""

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from rlanything.errors import ClearError
from rlanything.types import Message, Tool, assistant, system, tool, user

THOUGHT = "<think>"
ROLES = ("system", "user", "assistant", "tool")

# A template trims, splits or quotes texts, but it keeps a word whole. An environment cannot guess these words, so no
# observation can contain them.
_NONCE = secrets.token_hex(8)
_ANSWER = f"answer{_NONCE}"  # stands for the text of an assistant message
_MARK = f"mark{_NONCE}"  # stands for anything else that the rendering must show
GUARD = f"guard{_NONCE}"  # stands before and after a special token that a message spells out

# A template raises these.
_FAULTS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_OPENING = user(".")
_ID = "000000000"  # Mistral's templates ask for nine characters


class ChatError(ClearError, ValueError):
    """A tokenizer, a chat template or a message that cannot be used: the message says why and what to do."""


def _any_of(tokens: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, tokens))) if tokens else None


def _call(name: str) -> dict[str, Any]:
    return {"type": "function", "id": _ID, "function": {"name": name, "arguments": {}}}


_PARAMETERS = {"type": "object", "properties": {"x": {"type": "string", "description": "."}}, "required": ["x"]}
_TOOLS = [{"type": "function", "function": {"name": _MARK, "description": ".", "parameters": _PARAMETERS}}]
_CALLED = [_OPENING, assistant("", [_call("f")])]
_TRAINED = "use a model that was trained with tools, or write them as text into system and user messages"

# What some templates do not render: a conversation that would show it, the tools of that conversation, and the remedy.
_NEEDS: dict[str, tuple[list[Message], list[Tool], str]] = {
    "tools": ([_OPENING], _TOOLS, _TRAINED),
    "tool calls": ([_OPENING, assistant("", [_call(_MARK)])], [], _TRAINED),
    "tool messages": ([*_CALLED, tool(_MARK, name="f", tool_call_id=_ID)], [], _TRAINED),
    "images": ([user(".", ["image"])], [], "use the chat template that belongs to the model"),
    "text beside tool calls": (
        [_OPENING, assistant(_MARK, [_call("f")])],
        [],
        "write the calls into the text, or leave the text out",
    ),
}


class Template:
    """The chat template of a tokenizer.

    `opening` is a rendered user message with the head of the assistant's turn after it. In a rendering, `lead` stands
    between such a head and the assistant's text (Mistral: a space), `trail` between the text and the end of the turn
    (Llama 2: a space). `end` is the special token that ends the turn. `thought` is the mark of a thought that the head
    of the assistant's turn opens, empty if it opens none.

    Raises ChatError if an assistant's turn does not end with one special token.
    """

    def __init__(self, tokenizer: Any, name: str, image_token: str = "") -> None:
        """`image_token` stands for an image in a rendering; empty if the model reads none."""
        self._tokenizer, self._name, self._image_token = tokenizer, name, image_token
        special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
        ordered = sorted(special, key=len, reverse=True)  # the longest first, if one begins with another
        self._spelled = _any_of(ordered)
        self._structural: re.Pattern[str] | None = None  # not known until the template has rendered something
        self._lacks: dict[str, str] = {}
        # Mistral's older templates move the system text into the last user message: prompts would not grow.
        text, _ = self._tried([system(_MARK), _OPENING, assistant(_ANSWER), _OPENING], [])
        self._takes_system = 0 <= text.find(_MARK) < text.find(_ANSWER)
        self.opening = self.render([_OPENING])
        before, _, after = self.render([_OPENING, assistant(_ANSWER), _OPENING]).partition(_ANSWER)
        last = self.render([_OPENING, assistant(_ANSWER)], generate=False).partition(_ANSWER)[2]
        rest = after.lstrip()
        self.end = next((token for token in ordered if rest.startswith(token)), "")
        # A token that stands there only if a user message follows opens that message, as in GLM's templates.
        if not (self.end and last.lstrip().startswith(self.end)):
            raise ChatError(
                f"model {name}: its chat template puts {after[:20]!r} after an assistant's text if a user message "
                f"follows, and {last[:20]!r} at the end of a conversation, expected the same special token, which ends "
                "the turn; correct chat_template.jinja, or mark the token as special in tokenizer_config.json"
            )
        written = f"{self.opening}{self.end}"
        if image_token:
            written += image_token + self._tried(*_NEEDS["images"][:2])[0]
        self._structural = _any_of([token for token in ordered if token in written])
        self.thought = THOUGHT if self.opening.rstrip().endswith(THOUGHT) else ""
        self.lead = before.removeprefix(self.opening) if before.startswith(self.opening) else ""
        self.trail = after[: len(after) - len(rest)]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), generate: bool = True) -> str:
        """The text of a conversation; with `generate` up to where the assistant is to speak.

        GUARD stands around every special token that a message spells out, but in the assistant's only around those that
        make turns or stand for images. Raises ChatError if the template lacks a role or tools, or with the template's
        own complaint.
        """
        self._check(messages, tools)
        try:
            return self._apply(self._prepared(messages), tools, generate)
        except _FAULTS as error:
            roles = ", ".join(str(m["role"]) for m in messages[-6:])
            raise ChatError(
                f"model {self._name}: its chat template cannot render a conversation that ends with {roles}: {error}"
            ) from error

    def tail(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The text from the end of an assistant's turn, its token included, to where the assistant is to speak again,
        with `messages` in between. Raises as `render` does."""
        text = self.render([_OPENING, assistant(_ANSWER), *messages], tools).partition(_ANSWER)[2].lstrip()
        if not text.startswith(self.end):
            roles = ", ".join(str(m["role"]) for m in messages)
            raise ChatError(
                f"model {self._name}: before messages of {roles} its chat template ends an assistant's turn with "
                f"{text[:20]!r}, expected {self.end!r} as before a user message; use another chat template"
            )
        return text

    def turn(self, message: Message, tools: Sequence[Tool]) -> str:
        """The text between head and end of the turn of an assistant message with tool calls. Raises as `render` does.

        It is rendered with results of the calls behind it: Qwen3's template puts an empty `<think>` block into a last
        message, and a growing conversation has none.
        """
        head = self.render([_OPENING], tools)
        calls = message["tool_calls"]
        results = [tool(_MARK, name=call["function"]["name"], tool_call_id=call.get("id", _ID)) for call in calls]
        text = self.render([_OPENING, message, *results], tools, generate=False).partition(_MARK)[0]
        text, end, _ = text.rpartition(self.end)
        if not end or not text.startswith(head):
            raise ChatError(
                f"model {self._name}: its chat template does not render tool calls between {self.opening[-20:]!r} and "
                f"{self.end!r}, which open and end a turn of text; write the calls into the text of the message"
            )
        return text[len(head) :]

    def _tried(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[str, str]:
        """The rendering of a conversation, or the template's complaint."""
        try:
            return self._apply(messages, tools, generate=True), ""
        except _FAULTS as error:
            return "", str(error)

    def _apply(self, messages: Sequence[Message], tools: Sequence[Tool], generate: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=generate
        )
        return text

    def _check(self, messages: Sequence[Message], tools: Sequence[Tool]) -> None:
        """Raise ChatError if the template lacks what a conversation needs: many leave it out and say nothing."""
        needs = {"tools"} if tools else set()
        for message in messages:
            if message["role"] not in ROLES:
                raise ChatError(f"a message has the role {message['role']!r}, expected one of {', '.join(ROLES)}")
            if message["role"] == "tool":
                needs.add("tool messages")
            if images_of([message]):
                if not self._image_token:
                    raise ChatError(
                        f"model {self._name} reads no images, and a {message['role']} message has an image part: use a "
                        "model that reads images, or a domain that describes in text what there is to see"
                    )
                needs.add("images")
            if message.get("tool_calls"):
                needs |= {"tool calls", "text beside tool calls"} if self.text(message) else {"tool calls"}
        for need in sorted(needs):
            example, example_tools, remedy = _NEEDS[need]
            if need not in self._lacks:
                text, complaint = self._tried(example, example_tools)
                shown = text.count(self._image_token) == 1 if need == "images" else _MARK in text
                self._lacks[need] = "" if shown else complaint or "it leaves them out"
            if why := self._lacks[need]:
                raise ChatError(f"model {self._name}: its chat template renders no {need} ({why}); {remedy}")

    def _prepared(self, messages: Sequence[Message]) -> list[Message]:
        """Messages as the template takes them: guarded, and no system role if the template has none."""
        prepared = [self._guarded({**m, "content": self._content(m)}) for m in messages]
        if self._takes_system:
            return prepared
        if prepared and prepared[0]["role"] == "system":
            first, *prepared = prepared
            if not prepared or prepared[0]["role"] != "user":
                raise ChatError(
                    f"model {self._name}: its chat template has no system role, and no user message follows the system "
                    "text that could take it; put the text into the first user message"
                )
            prepared[0] = {**prepared[0], "content": _joined(first["content"], prepared[0]["content"])}
        if any(m["role"] == "system" for m in prepared):
            raise ChatError(
                f"model {self._name}: its chat template has no system role, and a system message stands within the "
                "conversation; put its text into a user message"
            )
        return prepared

    def text(self, message: Message) -> str:
        """The text of a message. Raises ChatError if it has other parts."""
        content = self._content(message)
        if isinstance(content, str):
            return content
        raise ChatError(f"model {self._name}: a {message['role']} message has an image part, expected text alone")

    def _content(self, message: Message) -> str | list[dict[str, Any]]:
        """The text of a message, or its parts if there is an image among them, as the template takes them."""
        content = message.get("content") or ""
        if isinstance(content, str):
            return content
        for part in content:
            if part.get("type") not in ("text", "image"):
                raise ChatError(f"a {message['role']} message has a part {part!r}, expected type text or image")
        if images_of([message]):
            return list(content)
        return "".join(part["text"] for part in content)

    def guarded(self, text: str) -> str:
        """An assistant's text with GUARD around the tokens that make turns or stand for images."""
        return str(_guard(text, self._structural))

    def _guarded(self, message: Message) -> Message:
        tokens = self._structural if message["role"] == "assistant" else self._spelled
        content = message["content"]
        if isinstance(content, list):
            content = [part if part.get("type") == "image" else _guard(part, tokens) for part in content]
        else:
            content = _guard(content, tokens)
        rest = {key: _guard(value, tokens) for key, value in message.items() if key != "content"}
        return {**rest, "content": content}


class NoTemplate:
    """Stands for a chat template where there is none: such a model reads and continues raw prompts alone.

    `end` is the tokenizer's eos. Raises ChatError if it has none; so does everything that needs a template.
    """

    opening = lead = trail = thought = ""

    def guarded(self, text: str) -> str:
        """The text: without a template no token makes a turn."""
        return text

    def __init__(self, tokenizer: Any, name: str) -> None:
        self._lacking = (
            f"model {name}: its tokenizer has no chat template; use an instruct model, or add chat_template.jinja to "
            "its folder, or write all prompts of this role as NAME.raw.jinja (dataset.prompt, docs/prompts.md)"
        )
        if (Path(name) / "chat_template.json").is_file():  # transformers 4 wrote it for models of images
            self._lacking += "; the text in its chat_template.json belongs into chat_template.jinja"
        self.end: str = tokenizer.eos_token or ""
        if not self.end:
            raise ChatError(
                f"model {name}: its tokenizer has neither a chat template nor an eos token; add one of them"
            )

    def _refuse(self, *args: Any, **keys: Any) -> str:
        raise ChatError(self._lacking)

    render = tail = turn = text = _refuse


def _guard(value: Any, tokens: re.Pattern[str] | None) -> Any:
    """GUARD around the tokens that a text spells, and around those in the texts of a list or an object."""
    if isinstance(value, str):
        return tokens.sub(rf"{GUARD}\g<0>{GUARD}", value) if tokens else value
    if isinstance(value, list):
        return [_guard(each, tokens) for each in value]
    return {key: _guard(each, tokens) for key, each in value.items()} if isinstance(value, dict) else value


def images_of(messages: Sequence[Message]) -> list[str]:
    """The paths of the images of a conversation, in order."""
    parts = [part for m in messages if isinstance(m.get("content"), list) for part in m["content"]]
    return [part["image"] for part in parts if part.get("type") == "image"]


def _joined(text: str, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """A system text before the content of a user message."""
    if isinstance(content, str):
        return f"{text}\n\n{content}"
    return [{"type": "text", "text": f"{text}\n\n"}, *content]

"""Chat templates as token ids: whole prompts, and the piece between a response and the next turn's prompt.

What was sampled is what is trained: a response's ids are never decoded and encoded again. `follow_up` gives
the ids that a template puts after an assistant turn, so that an episode is one growing sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer

from rlanything.config.schema import ModelConfig
from rlanything.errors import ClearError
from rlanything.types import Message, Prompt

MAX_PIECES = 1024  # encoded follow-ups kept: a room gives the same answers again and again
_MARK = "\u2063assistant-response\u2063"  # stands for a response while the template is taken apart


class ChatError(ClearError, ValueError):
    """A model whose tokenizer or chat template cannot be used: the message says why and what to do."""


class Chat:
    """One model's tokenizer and chat template."""

    def __init__(self, model: ModelConfig) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        except (OSError, ValueError) as error:
            raise ChatError(
                f"model {model.path}: no tokenizer could be loaded ({str(error).splitlines()[0]})"
            ) from error
        if not self.tokenizer.chat_template:
            raise ChatError(
                f"model {model.path}: its tokenizer has no chat template; use an instruct model, or add one"
            )
        if self.tokenizer.eos_token_id is None:
            raise ChatError(f"model {model.path}: its tokenizer names no eos_token, which ends every turn")
        self.eos_id: int = self.tokenizer.eos_token_id
        self._piece = lru_cache(MAX_PIECES)(self.encode)

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text; nothing is added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Prompt:
        """Ids of a conversation up to where the assistant is to speak."""
        return Prompt(ids=self.encode(self._render(messages)))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.eos_id,)

    def response_ids(self, text: str) -> list[int]:
        return [*self.encode(text), self.eos_id]

    def follow_up(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Prompt:
        """Ids between a response, which ends with the eos token, and the next: the user message, and the head of the
        next assistant turn."""
        text = self._render([{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}, *messages])
        tail = text.partition(_MARK)[2]
        eos = self.tokenizer.eos_token
        if not tail.startswith(eos):
            raise ChatError(
                f"the chat template does not end an assistant turn with the eos token {eos!r}, but with {tail[:20]!r}"
            )
        return Prompt(ids=self._piece(tail[len(eos) :]))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _render(self, messages: Sequence[Message]) -> str:
        text: str = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return text

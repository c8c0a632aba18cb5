"""Conversations as token ids: whole prompts, responses, and the piece between a response and the next turn.

A response's ids are trained on as they were sampled, never decoded and encoded again. `follow_up` gives the ids that a
template puts after an assistant turn, so that an episode is one growing sequence.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from transformers import AutoTokenizer

from rlanything.config.schema import ModelConfig
from rlanything.engines.images import image_reader
from rlanything.engines.template import GUARD, ChatError, NoTemplate, Template, images_of
from rlanything.types import RAW, Message, Prompt, Tool

MAX_PIECES = 1024  # encoded follow-ups that are kept: an environment often gives the same answer


class Chat:
    """One model's tokenizer and chat template.

    `end_of_turn` is the id of the special token that ends an assistant's turn in the template; demonstrations end with
    it. `stop_ids` end a sampled response: that token, and the tokenizer's eos if it is another.

    **Growing equals rendering anew.** `prompt(m1)`, a response and `follow_up([m2])` together are the ids of
    `prompt([m1, the response's message, m2])`, for a template that renders a message alike wherever it stands. Some do
    not: Qwen3 drops the reasoning of turns before the last user message, and Mistral lists the tools before the last
    user message only. Growing then keeps what the model has seen and written.

    **Special tokens in texts.** A special token that a system, user or tool message spells out (`<|im_end|>` in an
    observation) is encoded as ordinary text: no observation can end a turn or open one. Nothing else about the text's
    tokens changes, but SentencePiece tokenizers put a space before it and after it. In an assistant message that holds
    of the tokens that make turns or stand for images alone: models write others themselves (`<|python_tag|>`). Tokens
    that a tokenizer adds without marking them as special (Qwen's `<tool_call>`) are tokens in every message.

    **Without a chat template** a model continues prompts of the role RAW, up to its eos. All else raises ChatError.

    Raises ChatError if no tokenizer can be loaded, or if its chat template has no end of turn.
    """

    def __init__(self, model: ModelConfig) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
            self.tokenizer("a")  # some settings are read only now
        except Exception as error:  # tokenizers raises no narrower one for a broken file
            why = str(error).partition("\n")[0]
            raise ChatError(
                f"model {model.path}: no tokenizer could be loaded ({why}); expected tokenizer.json beside "
                "config.json, or a model of the hub that can be reached"
            ) from error
        self._images = image_reader(model, self.tokenizer)
        self._template = (
            Template(self.tokenizer, model.path, self._images.token if self._images else "")
            if self._written
            else NoTemplate(self.tokenizer, model.path)
        )
        self._special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        end: Any = self.tokenizer.convert_tokens_to_ids(self._template.end)
        self.end_of_turn: int = end
        eos = self.tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in (self.end_of_turn, eos) if i is not None))
        self._opening = self.encode(self._template.opening)
        self._piece = lru_cache(MAX_PIECES)(self._rendered)

    @property
    def _written(self) -> str:
        """The chat template; empty if there is none: mistral-common's tokenizers have no such attribute."""
        return str(getattr(self.tokenizer, "chat_template", None) or "")

    @property
    def raw_only(self) -> bool:
        """True if there is no chat template."""
        return isinstance(self._template, NoTemplate)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """A conversation up to where the assistant is to speak. If the template has no system role, the system text
        opens the first user message. A message of the role RAW is the prompt as it is.

        Raises ChatError if the template cannot render the messages or the tools.
        """
        if messages and messages[0]["role"] == RAW:
            return Prompt(ids=self.encode(messages[0]["content"]))
        return self._with_images(self._rendered(self._template.render(messages, tools)), messages)

    def follow_up(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Prompt:
        """The piece between the end-of-turn token of a response and the next response: messages, and the head of the
        assistant's turn. Raises as `prompt` does."""
        return self._with_images(self._piece(self._template.tail(messages, tools))[1:], messages)

    def assistant(self, message: Message, tools: Sequence[Tool] = ()) -> list[int]:
        """An assistant message of a demonstration as response ids, as the template renders it. Raises ChatError if the
        template cannot render tool calls, or drops the text beside them."""
        if message.get("tool_calls"):
            return self._response(self._template.turn(message, tools))
        return self.response_ids(self._template.text(message))

    def response_ids(self, text: str) -> list[int]:
        """A text as a response: its ids and the end of the turn."""
        return self._response(f"{self._template.lead}{self._template.guarded(text)}{self._template.trail}")

    def encode(self, text: str) -> list[int]:
        """Token ids of a rendered text, special tokens included; nothing is added."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def response_text(self, ids: Sequence[int]) -> str:
        """The text of a sampled response. If the template opens a thought for the model, as those of thinking models
        do, the text begins with its mark: a thought that was cut off is then known for one."""
        return f"{self._template.thought}{self.decode(ids)}"

    def vocabulary(self) -> dict[str, int]:
        """The tokens that can occur in a conversation. Special tokens that the template never writes are left out:
        Gemma 3's text models have a token for images whose id lies beyond their embedding."""
        written = f"{self._written}{self.tokenizer.bos_token}"
        ids = self.tokenizer.get_vocab().items()
        return {t: i for t, i in ids if i not in self._special or i in self.stop_ids or t in written}

    def _response(self, text: str) -> list[int]:
        """Ids of an assistant's turn. They are cut from a longer text, because SentencePiece tokenizers encode the
        first word of a text otherwise than the same word after the head of the turn."""
        whole = self._rendered(f"{self._template.opening}{text}{self._template.end}")
        if whole[: len(self._opening)] == self._opening:
            return whole[len(self._opening) :]
        return [*self._rendered(text), self.end_of_turn]  # the head's last characters merge with the text's first

    def image_tokens(self, size: tuple[int, int]) -> int:
        """Tokens of an image of `size` (width, height) [pixels]; 0 if the model reads no images. Raises ChatError."""
        return self._images.num_tokens(size) if self._images else 0

    def _with_images(self, ids: list[int], messages: Sequence[Message]) -> Prompt:
        return self._images.placed(ids, images_of(messages)) if self._images else Prompt(ids=ids)

    def _rendered(self, text: str) -> list[int]:
        """Ids of a rendering. A special token between guards is encoded as ordinary text."""
        ids: list[int] = []
        for i, piece in enumerate(text.split(GUARD)):
            ids += self._spelled(piece) if i % 2 else self.encode(piece)
        return ids

    def _spelled(self, token: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(token, add_special_tokens=False, split_special_tokens=True)
        if self._special.isdisjoint(ids):
            return ids
        # The special token is a piece of the vocabulary too, as in Unigram models: spell it letter by letter.
        return [i for letter in token for i in self.tokenizer.encode(letter, add_special_tokens=False)]

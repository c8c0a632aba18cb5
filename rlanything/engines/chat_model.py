"""An engine with its model's chat template. Policy, reward model and rewriter are chat models."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers.utils import logging

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines import start_engine
from rlanything.engines.base import Engine, SamplingParams, require_finite
from rlanything.engines.chat import Chat
from rlanything.engines.process import ProcessEngine
from rlanything.types import Message, Prompt


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One sampled answer."""

    ids: list[int]
    """Token ids, the end-of-turn token included."""
    logprobs: list[float]
    """The engine's, at the sampling temperature."""
    text: str
    """Decoded, without special tokens."""


@dataclass(frozen=True)
class ChatModel:
    """An engine with its model's chat template."""

    engine: Engine
    chat: Chat

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        num: int = 1,
        temperature: float,
        max_tokens: int,
        seed: int,
        session: str = "",
        top_p: float = 1.0,
    ) -> tuple[Prompt, list[Reply]]:
        """`num` answers to a conversation, with the prompt as the model read it. Raises as `Engine.generate` does.

        An engine in a process of its own encodes the conversation there, since thousands of transcripts take long.
        """
        sampling = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            stop_token_ids=self.chat.stop_ids,
            seed=seed,
            session=session,
        )
        if isinstance(self.engine, ProcessEngine):
            prompt, completions = await self.engine.ask(messages, sampling, num)
        else:
            prompt = self.chat.prompt(messages)
            completions = await self.engine.generate(prompt.ids, sampling, num, prompt.images)
        require_finite(completions)
        said = self.chat.response_text
        replies = [Reply(ids=c.token_ids, logprobs=c.logprobs, text=said(c.token_ids)) for c in completions]
        return prompt, replies


def start_chat_model(model: ModelConfig, config: EngineConfig, seed: int, log_path: Path, chat: Chat) -> ChatModel:
    """A model ready to be asked. `chat` is what `check_model` returned for it. Raises EngineError if it cannot run."""
    logging.disable_progress_bar()  # transformers' own, for loading and saving, many times a run
    return ChatModel(start_engine(model, config, seed, log_path), chat)

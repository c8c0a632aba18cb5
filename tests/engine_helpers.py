"""Tiny random models, requests to an engine, and what a plain forward pass of transformers says of its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rlanything.config.schema import EngineConfig
from rlanything.engines.base import Completion, Engine, SamplingParams

TINY_ENGINE = EngineConfig(kind="transformers", dtype="float32", max_model_len=512, max_num_seqs=32, kv_cache_gb=0.05)

VOCAB = 256
SIZES = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    initializer_range=0.3,
    eos_token_id=1,
    pad_token_id=0,
)


def save_model(family: str, folder: Path, head_dim: int = 32) -> Path:
    """Write a random qwen3 (with tied embeddings) or llama into a folder, and return the folder."""
    torch.manual_seed(0)
    if family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=head_dim, tie_word_embeddings=True))
    else:
        model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    model.save_pretrained(folder)
    return folder


def load_model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def perturb(model: PreTrainedModel) -> None:
    """Change every weight a little."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, VOCAB, (length,), generator=generator).tolist() for length in lengths]


def generate(engine: Engine, batch: list[list[int]], n: int = 1, **sampling: object) -> list[list[Completion]]:
    """What requests get that are made at the same time; request i has the seed i."""

    async def all_at_once() -> list[list[Completion]]:
        values: dict = {"temperature": 0.8, "max_tokens": 12} | sampling
        calls = [engine.generate(p, SamplingParams(**{"seed": i} | values), n=n) for i, p in enumerate(batch)]
        return list(await asyncio.gather(*calls))

    return asyncio.run(all_at_once())


def assert_logprobs(
    model: PreTrainedModel,
    batch: list[list[int]],
    outputs: list[list[Completion]],
    temperature: float = 0.8,
    *,
    tolerance: float,
) -> None:
    """The logprobs are those of a forward pass over each whole sequence."""
    for prompt, completions in zip(batch, outputs, strict=True):
        for completion in completions:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + completion.token_ids])).logits[0, len(prompt) - 1 : -1]
            logprobs = (logits / temperature).log_softmax(-1)
            expected = logprobs[torch.arange(len(completion.token_ids)), completion.token_ids]
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, rtol=0, atol=tolerance)

"""How much faster an update is where turns of an episode are merged: packed trees against one row per turn.

    python benchmarks/packing.py [--episodes 4] [--turns 20] [--threads 2] [--repeats 3]

Both sides run the same model, attention, head and loss (forward and backward, bfloat16); rows of the unpacked side
are sorted by length, so its padding is small. Gradients are compared in float32.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import MicroBatch, build_trees, pack, packing_ratio
from rlanything.types import Sample

VOCAB = 2048
FIRST_TOKENS, OBSERVATION_TOKENS, RESPONSE_TOKENS = 60, (10, 30), (10, 20)  # of a text game's episode


def episodes(num: int, turns: int, rng: np.random.Generator) -> list[Sample]:
    """`append_only` turns: sample i of an episode is the whole conversation up to response i."""
    samples = []
    for episode in range(num):
        ids = rng.integers(3, VOCAB, FIRST_TOKENS)
        for _ in range(turns):
            response = int(rng.integers(*RESPONSE_TOKENS))
            ids = np.concatenate([ids, rng.integers(3, VOCAB, response)])
            mask = np.zeros(len(ids))
            mask[-response:] = 1 / response
            samples.append(Sample(ids, mask, mask * rng.normal(), -8 * np.sign(mask), key=str(episode)))
            ids = np.concatenate([ids, rng.integers(3, VOCAB, int(rng.integers(*OBSERVATION_TOKENS)))])
    return samples


def accumulate(model: TreeModel, batches: Sequence[MicroBatch]) -> float:
    """Forward and backward of all micro-batches; returns the seconds."""
    model.zero_grad()
    start = time.perf_counter()
    for batch in batches:
        logprobs, _ = model(batch, 1.0)
        (-torch.from_numpy(batch.entries.weights * batch.entries.advantages) * logprobs).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    """Print the ratio of the two times and the largest relative difference of the gradients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("episodes", 4), ("turns", 20), ("threads", 2), ("repeats", 3), ("tokens", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=768,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(config).save_pretrained(Path(folder))
        model = TreeModel(ModelConfig(path=folder), LearnerConfig(dtype="float32"), torch.device("cpu"))

    samples = episodes(args.episodes, args.turns, np.random.default_rng(0))
    start = time.perf_counter()
    packed = pack(build_trees(samples, args.tokens, model.pairs_per_token), args.tokens)
    packing_s = time.perf_counter() - start
    alone = [replace(s, key=str(i)) for i, s in enumerate(samples)]
    rows = pack(build_trees(alone, args.tokens), args.tokens)

    gradients = []
    for batches in (packed, rows):
        accumulate(model, batches)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*gradients, strict=True))

    model.dtype = torch.bfloat16
    accumulate(model, packed)
    times = [(accumulate(model, packed), accumulate(model, rows)) for _ in range(args.repeats)]
    packed_s, rows_s = (min(side) for side in zip(*times, strict=True))
    tokens = sum(len(s.ids) for s in samples)
    print(f"{len(samples)} samples of {args.episodes} episodes, {tokens} tokens; packing {packing_ratio(packed):.1f}:1")
    print(f"packed {packed_s:.2f} s (and {packing_s * 1e3:.0f} ms to pack), one row per turn {rows_s:.2f} s")
    print(f"ratio {rows_s / (packed_s + packing_s):.1f}x; max relative difference of gradients {difference:.1e}")


if __name__ == "__main__":
    main()

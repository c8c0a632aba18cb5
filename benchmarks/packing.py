"""How much faster an update is where turns of an episode are merged: packed trees against one row per turn.

    python benchmarks/packing.py [--vision] [--episodes 4] [--turns 20] [--threads 2] [--repeats 3]

With `--vision` the model is the tiny Qwen3-VL of the drawn desktops, untrained, and every turn has a screenshot.
Both sides run the same model, attention, head and loss (forward and backward; bfloat16 for texts, float32 with images).
Rows of the unpacked side are sorted by length, so its padding is small. Gradients are compared in float32.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from drawn_desktop.model import make_model, make_tokenizer, write  # noqa: E402

from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.domains.base import Observation
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.demonstrations import response, wrong_move
from rlanything.domains.osworld.canvas.drawing import draw, png
from rlanything.domains.osworld.canvas.goals import instruction
from rlanything.domains.osworld.canvas.tasks import make_family
from rlanything.domains.osworld.prompts import opening
from rlanything.engines.chat import Chat
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import MicroBatch, build_trees, pack, packing_ratio
from rlanything.types import Sample, user

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


def vision_episodes(num: int, turns: int, folder: Path) -> list[Sample]:
    """`append_only` turns on drawn desktops: sample i of an episode has i + 1 screenshots."""
    chat, rng, samples = Chat(ModelConfig(path=str(folder))), random.Random(0), []
    images = ImageStore(folder / "images")
    for episode in range(num):
        family = make_family(f"packing/{episode}", "middle", 0.0)
        desk, asked = family.desk.clone(), instruction(family.verifiers[0].goals)
        prompt = chat.prompt(opening(asked, Observation("", images=(images.put(png(draw(desk))),)), "compact"))
        for _ in range(turns):
            move = wrong_move(rng, desk)
            perform(desk, move.action)
            ids = chat.response_ids(response(move))
            mask = np.asarray([0.0] * len(prompt.ids) + [1 / len(ids)] * len(ids))
            advantage = rng.gauss(0, 1)
            whole = np.asarray([*prompt.ids, *ids], np.int64)
            samples.append(Sample(whole, mask, mask * advantage, -8 * np.sign(mask), str(episode), prompt.images))
            prompt = prompt.extended(ids, chat.follow_up([user("", [images.put(png(draw(desk)))])]))
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
    parser.add_argument("--vision", action="store_true", help="episodes with screenshots")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        if args.vision:
            tokenizer = make_tokenizer()
            write(Path(folder), make_model(tokenizer, 0), tokenizer)
        else:
            write_text_model(Path(folder))
        model = TreeModel(ModelConfig(path=folder), LearnerConfig(dtype="float32"), torch.device("cpu"))
        rng = np.random.default_rng(0)
        made = vision_episodes(args.episodes, args.turns, Path(folder)) if args.vision else None
        compare(model, made or episodes(args.episodes, args.turns, rng), args)


def write_text_model(folder: Path) -> None:
    """A small Qwen3 with random weights."""
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
    Qwen3ForCausalLM(config).save_pretrained(folder)


def compare(model: TreeModel, samples: list[Sample], args: argparse.Namespace) -> None:
    """Time both sides, and print what they took."""
    start = time.perf_counter()
    trees = build_trees(samples, args.tokens, model.pairs_per_token, positions=model.positions)
    packed = pack(trees, args.tokens)
    packing_s = time.perf_counter() - start
    alone = [replace(s, key=str(i)) for i, s in enumerate(samples)]
    rows = pack(build_trees(alone, args.tokens, positions=model.positions), args.tokens)

    gradients = []
    for batches in (packed, rows):
        accumulate(model, batches)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(*gradients, strict=True))

    model.dtype = model.dtype if args.vision else torch.bfloat16
    accumulate(model, packed)
    times = [(accumulate(model, packed), accumulate(model, rows)) for _ in range(args.repeats)]
    packed_s, rows_s = (min(side) for side in zip(*times, strict=True))
    tokens = sum(len(s.ids) for s in samples)
    print(f"{len(samples)} samples of {args.episodes} episodes, {tokens} tokens; packing {packing_ratio(packed):.1f}:1")
    print(f"packed {packed_s:.2f} s (and {packing_s * 1e3:.0f} ms to pack), one row per turn {rows_s:.2f} s")
    print(f"ratio {rows_s / (packed_s + packing_s):.1f}x; max relative difference of gradients {difference:.1e}")


if __name__ == "__main__":
    main()

"""How well an update uses its hardware: the learner against a plain transformers + torch loop on the same samples.

    python benchmarks/train_mfu.py                              # tiny, on this machine's CPU
    python benchmarks/train_mfu.py --shape 7b --layers 6 --tokens 4096 16384 --prompts 64 --compile    # one H100/H200

Samples are judgements: `--share` answers to one prompt, as a reward model is trained on. The learner packs them as
token trees (FlexAttention on a GPU) and takes logits where the loss needs them, in chunks; the plain loop pads them
into rows, longest beside longest, and takes all logits. Both have float32 weights, autocast, AdamW, and the same budget
of tokens a micro-batch. Random weights. A 7B model's float32 weights, gradients and moments do not fit one device of
80 GB: --layers takes fewer of its layers. A time is a whole update's, from samples to the optimizer's step.

MFU: the FLOPs that the tree needs (6 a parameter and token, 12 a width and visible pair; no recomputation counts) per
second, of the peak: of the data sheet for H100 and H200, else that of a large matrix product measured here. The order
alternates; the medians count.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.deepspeed import Learner
from rlanything.learner.packing import build_trees, pack
from rlanything.types import Sample
from rlanything.weights.precision import torch_dtype

SHAPES = {
    "tiny": dict(hidden_size=256, intermediate_size=768, num_attention_heads=4, num_key_value_heads=2, vocab_size=4096),
    "7b": dict(
        hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4, vocab_size=152064
    ),
}
# bf16 dense [FLOP/s], by the data sheets; the first that is in a device's name counts, and without a word it is an SXM.
PEAK = {"H100 PCIe": 756e12, "H100 NVL": 835e12, "H200 NVL": 835e12, "H100": 989e12, "H200": 989e12}


def judgements(num: int, share: int, prompt: tuple[int, int], vocab: int) -> list[Sample]:
    """`share` answers of 40 to 160 tokens to each of `num` prompts."""
    rng = np.random.default_rng(0)
    samples = []
    for i in range(num):
        asked = rng.integers(3, vocab, int(rng.integers(*prompt)))
        for _ in range(share):
            answer = rng.integers(3, vocab, int(rng.integers(40, 160)))
            mask = np.r_[np.zeros(len(asked)), np.full(len(answer), 1 / len(answer))]
            ids = np.concatenate([asked, answer])
            samples.append(Sample(ids, mask, rng.normal() * np.sign(mask), -8.0 * np.sign(mask), key=str(i)))
    return samples


def needed_flops(samples: list[Sample], tokens: int, config: Qwen2Config) -> float:
    """Forward and backward, each token of a tree once, the head where the loss needs it."""
    trees = build_trees(samples, tokens)
    batches = pack(trees, tokens)
    width = config.hidden_size
    kv = width * config.num_key_value_heads // config.num_attention_heads
    layer = 2 * width * (width + kv) + 3 * width * config.intermediate_size
    tree, entries = sum(b.tree_tokens for b in batches), sum(len(b.entries.nodes) for b in batches)
    pairs = sum(float((t.positions[0] + 1).sum()) for t in trees)  # a token sees those before it, and itself
    return 6 * config.num_hidden_layers * (layer * tree + 2 * width * pairs) + 6 * width * config.vocab_size * entries


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Of the data sheet, or of a matrix product here."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name()
        if known := [peak for part, peak in PEAK.items() if part in name]:
            return known[0]
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    times = []
    for _ in range(6):  # the first one warms up
        started = time.perf_counter()
        float((a @ b)[0, 0])  # waits for it
        times.append(time.perf_counter() - started)
    return 2 * size**3 / min(times)


class Plain:
    """What one would write first."""

    def __init__(self, folder: str, config: LearnerConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).train()
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, weight_decay=0.0)
        self.config, self.device, self.dtype = config, device, dtype

    def update(self, samples: list[Sample]) -> float:
        """One optimizer step; returns the loss."""
        rows = sorted(samples, key=lambda s: len(s.ids))
        total = sum(s.weights.sum() for s in rows)
        loss = 0.0
        while rows:
            num = max(1, self.config.micro_batch_tokens // len(rows[-1].ids))
            batch, rows = rows[-num:], rows[:-num]
            part = self._loss(batch) / total
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _loss(self, batch: list[Sample]) -> Tensor:
        length = max(len(s.ids) for s in batch)

        def padded(arrays: list[np.ndarray], kind: torch.dtype) -> Tensor:
            stacked = np.stack([np.pad(a, (0, length - len(a))) for a in arrays])
            return torch.from_numpy(stacked).to(self.device, kind)

        ids, mask = padded([s.ids for s in batch], torch.long), padded([np.ones(len(s.ids)) for s in batch], torch.long)
        weights, advantages, old = (
            padded([getattr(s, name) for s in batch], torch.float32)[:, 1:]
            for name in ("weights", "advantages", "logprobs")
        )
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits = self.model(ids, attention_mask=mask).logits[:, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = torch.where(weights > 0, torch.exp(logprobs - old), 0.0)
        clipped = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        return -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()


def main() -> None:
    # Saving a model imports DeepSpeed, which warns of a machine without accelerator.
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096], help="packed tokens a micro-batch")
    parser.add_argument(
        "--prompts", type=int, default=8, help="of 1 to 2 thousand tokens, or a sixth of --tokens if less"
    )
    parser.add_argument("--share", type=int, default=3, help="answers to a prompt")
    parser.add_argument("--checkpointing", action="store_true", help="costs a third more, which MFU does not count")
    parser.add_argument("--compile", action="store_true", help="the learner's layers")
    parser.add_argument("--updates", type=int, default=2, help="that are timed together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch_dtype("auto", device.type == "cuda")
    peak = peak_flops(device, dtype)
    print(f"{device.type}, {dtype}, peak {peak / 1e12:.3g} TFLOP/s")
    with tempfile.TemporaryDirectory() as folder:
        shape = Qwen2Config(**SHAPES[args.shape], num_hidden_layers=args.layers, tie_word_embeddings=False)
        torch.manual_seed(0)
        Qwen2ForCausalLM(shape).to(torch.bfloat16).save_pretrained(folder)
        save_tokenizer(folder)
        for tokens in args.tokens:
            compare(folder, shape, tokens, args, device, dtype, peak)


def compare(
    folder: str,
    shape: Qwen2Config,
    tokens: int,
    args: argparse.Namespace,
    device: torch.device,
    dtype: torch.dtype,
    peak: float,
) -> None:
    """Print seconds, MFU and the ratio for one size of micro-batch."""
    longest = min(2000, tokens // 6)
    samples = judgements(args.prompts, args.share, (longest // 2, longest), shape.vocab_size)
    config = LearnerConfig(
        lr=1e-6,
        num_update=1,
        kl_beta=0.0,
        old_logprobs="engine",
        importance_cap=0.0,
        micro_batch_tokens=tokens,
        gradient_checkpointing=args.checkpointing,
        compile=args.compile,
    )
    seconds: dict[str, list[float]] = {"learner": [], "plain": []}
    losses = {}
    for _ in range(args.repeat):
        learner = Learner(ModelConfig(path=folder), config, total_update=0)
        losses["learner"] = learner.update(sample_sets(samples))["loss"]  # compiles
        seconds["learner"].append(timed(lambda made=learner: made.update(sample_sets(samples)), args.updates, device))
        learner.close()
        plain = Plain(folder, config, device, dtype)
        try:
            losses["plain"] = plain.update(samples)
            seconds["plain"].append(timed(lambda made=plain: made.update(samples), args.updates, device))
        except torch.OutOfMemoryError:
            print(f"plain: out of memory at {tokens} tokens a micro-batch")
        del plain
        if device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
    flops = needed_flops(samples, tokens, shape)
    medians = {name: statistics.median(found) for name, found in seconds.items() if found}
    print(f"{tokens} tokens a micro-batch, {len(samples)} samples, {sum(len(s.ids) for s in samples)} tokens:")
    for name, median in medians.items():
        print(f"  {name:8} {median:7.3f} s an update, MFU {flops / median / peak:.1%}, loss {losses[name]:.5f}")
    if "plain" in medians:
        print(f"  plain / learner: {medians['plain'] / medians['learner']:.2f}")


def timed(update: Callable[[], object], num: int, device: torch.device) -> float:
    """Seconds of one of `num` updates, each done to its end."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for _ in range(num):
        update()
    wait()
    return (time.perf_counter() - started) / num


def save_tokenizer(folder: str) -> None:
    """The learner exports one with the model."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({"a": 0}, "a"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="a").save_pretrained(Path(folder))


if __name__ == "__main__":
    main()

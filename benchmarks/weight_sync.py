"""New weights for an engine: in place, against saving them and starting the engine anew (as the published code does).

    python benchmarks/weight_sync.py --repeat 3 [--model FOLDER] [--engine vllm]

In place: the weights are loaded into the running engine, its caches dropped, checksums taken on both sides. Anew: the
weights are written to disk, a process starts an engine on them, and gives its first token. Without --model a random one
of 3.7M parameters. The order alternates; the median counts. Prints seconds and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(folder: Path, kind: str):
    from rlanything.config.schema import EngineConfig, ModelConfig
    from rlanything.engines import start_engine

    config = EngineConfig(kind=kind.removeprefix("async_"), max_model_len=1024, kv_cache_gb=0.5)
    config.gpu_memory_utilization = 0.3  # two engines stand at once
    return start_engine(ModelConfig(path=str(folder)), config, 0, folder / "engine.log", alone=kind == "async_vllm")


def first_token(folder: Path, kind: str) -> None:
    """What a cold start comes to."""
    from rlanything.engines.base import SamplingParams

    engine = start(folder, kind)
    asyncio.run(engine.generate([5, 6, 7], SamplingParams(max_tokens=1)))
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--engine", default="vllm", choices=["vllm", "async_vllm", "transformers"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--cold", type=Path, help=argparse.SUPPRESS)  # set where this process is one cold start
    args = parser.parse_args()
    if args.cold:
        return first_token(args.cold, args.engine)

    # Saving a model imports DeepSpeed, which warns of a machine without accelerator.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch
    from engines import VOCAB, make_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rlanything.weights.checksum import checksum

    with tempfile.TemporaryDirectory() as name:
        folder = args.model or Path(name) / "model"
        if not args.model:
            make_model(folder)
            tiny_tokenizer(VOCAB).save_pretrained(folder)
        engine = start(folder, args.engine)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=engine.dtype)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        weights = dict(model.named_parameters())
        seconds: dict[str, list[float]] = {"in place": [], "anew": []}
        for i in range(args.repeat):
            started = time.perf_counter()
            engine.load_weights(i, weights.items())
            assert engine.checksum() == checksum(weights.items(), model.dtype)
            seconds["in place"].append(time.perf_counter() - started)

            started = time.perf_counter()
            saved = Path(name) / f"saved_{i}"
            model.save_pretrained(saved)
            tokenizer.save_pretrained(saved)
            command = [sys.executable, __file__, "--cold", str(saved), "--engine", args.engine]
            subprocess.run(command, check=True)
            seconds["anew"].append(time.perf_counter() - started)
        engine.close()
    medians = {what: statistics.median(found) for what, found in seconds.items()}
    parameters = sum(p.numel() for p in weights.values())
    print(f"{args.engine}, {parameters / 1e6:.1f}M parameters: in place {medians['in place']:.3f} s")
    print(
        f"saved and started anew {medians['anew']:.1f} s; anew / in place: {medians['anew'] / medians['in place']:.0f}"
    )
    data = torch.zeros(1 << 27, dtype=torch.bfloat16)
    started = time.perf_counter()
    checksum([("weight", data)], data.dtype)
    print(f"checksum: {data.nbytes / (time.perf_counter() - started) / 1e9:.1f} GB/s on {os.cpu_count()} cores")


def tiny_tokenizer(vocabulary: int):
    """A tokenizer with a chat template, as an engine wants one."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(vocabulary)}
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), eos_token="w1", pad_token="w0"
    )
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    return made


if __name__ == "__main__":
    main()

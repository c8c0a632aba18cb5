"""Speed of the two engines on one machine, on the same tiny model and the same synthetic multi-turn episodes.

    python benchmarks/engines.py --threads 1 2 --repeat 2
    python benchmarks/engines.py --threads 1 --repeat 2 --engines vllm async_vllm

`async_vllm` is the engine of replicas, whose vLLM computes in a process of its own: its rates per CPU second are of the
process that asks alone.
Each measurement runs in its own process (threads are fixed at start); the best of --repeat counts. "policy": episodes
whose every prompt is the last prompt + response + an observation; groups of 8 share their first prompt. "judge":
for each turn of such an episode, history + question, 3 samples. Prints sampled tokens per second of wall clock, the
same per CPU second (which a busy machine distorts less) and the ratios. Every response has 6 tokens or, with
--stop, ends at random like a policy's (mean about 6, at most 12).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VOCAB = 2048
GROUP = 8


def make_model(folder: Path) -> None:
    """Save a random Qwen3 of 3.7M parameters."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


async def policy_phase(engine, args: argparse.Namespace, stop: tuple[int, ...]) -> None:
    from rlanything.engines.base import SamplingParams

    system = [random.Random(0).randrange(2, VOCAB) for _ in range(60)]

    async def episode(index: int) -> None:
        task_rng, rng = random.Random(1 + index // GROUP), random.Random(1000 + index)
        prompt = system + [task_rng.randrange(2, VOCAB) for _ in range(90)]
        for turn in range(args.turns):
            sampling = SamplingParams(max_tokens=12 if stop else 6, stop_token_ids=stop, seed=index * 100 + turn)
            [completion] = await engine.generate(prompt, sampling)
            prompt = prompt + completion.token_ids + [rng.randrange(2, VOCAB) for _ in range(rng.randint(20, 40))]

    await asyncio.gather(*(episode(i) for i in range(args.episodes)))


async def judge_phase(engine, args: argparse.Namespace, stop: tuple[int, ...]) -> None:
    from rlanything.engines.base import SamplingParams

    question = [random.Random(2).randrange(2, VOCAB) for _ in range(20)]

    async def trajectory(index: int) -> None:
        rng = random.Random(5000 + index)
        history = [rng.randrange(2, VOCAB) for _ in range(150)]
        for turn in range(args.turns):
            history = history + [rng.randrange(2, VOCAB) for _ in range(rng.randint(26, 46))]
            sampling = SamplingParams(max_tokens=12 if stop else 6, stop_token_ids=stop, seed=index * 100 + turn)
            await engine.generate(history + question, sampling, n=3)

    await asyncio.gather(*(trajectory(i) for i in range(args.episodes // 2)))


def measure(args: argparse.Namespace) -> None:
    """One engine of this process: prints a JSON line of sampled tokens/s by phase."""
    import torch

    from rlanything.config.schema import EngineConfig, ModelConfig

    torch.set_num_threads(args.threads[0])
    folder = Path(args.model)
    config = EngineConfig(dtype=args.dtype, max_model_len=1024, max_num_seqs=args.seqs, kv_cache_gb=1.0)
    engine = kind_of(args.engine)(ModelConfig(path=str(folder)), config, 0, folder / "engine.log")
    stop = tuple(random.Random(3).sample(range(2, VOCAB), VOCAB // 7)) if args.stop else ()
    weights = torch.load(folder / "weights.pt")
    rates: dict[str, float] = {}
    for name, phase in (("policy", policy_phase), ("judge", judge_phase)):
        for _ in range(2):  # the first pass warms up kernels for the shapes that occur
            engine.load_weights(1, weights.items())  # empties the caches
            before, started, cpu = engine.stats().generated_tokens, time.perf_counter(), time.process_time()
            asyncio.run(phase(engine, args, stop))
            tokens = engine.stats().generated_tokens - before
            rates[name] = tokens / (time.perf_counter() - started)
            rates[name + "_per_cpu_s"] = tokens / (time.process_time() - cpu)
    rates["cached"] = engine.stats().cached_prompt_tokens / engine.stats().prompt_tokens
    engine.close()
    print(json.dumps(rates))


def kind_of(name: str) -> Any:
    """The class of an engine: vLLM need not be there for the other one."""
    if name == "transformers":
        from rlanything.engines.small.engine import TransformersEngine

        return TransformersEngine
    if name == "async_vllm":
        from rlanything.engines.vllm.asynchronous import AsyncVLLM

        return AsyncVLLM
    from rlanything.engines.vllm.in_process import InProcessVLLM

    return InProcessVLLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--seqs", type=int, default=256, help="max_num_seqs")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--stop", action="store_true", help="responses end at random instead of after 6 tokens")
    parser.add_argument("--engines", nargs="+", default=["transformers", "vllm"], help="and async_vllm")
    parser.add_argument("--engine", help=argparse.SUPPRESS)  # set where this process is one measurement
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.engine:
        return measure(args)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        import torch
        from safetensors.torch import load_file

        torch.save(load_file(Path(folder) / "model.safetensors"), Path(folder) / "weights.pt")
        for threads in args.threads:
            best: dict[str, dict[str, float]] = {engine: {} for engine in args.engines}
            for _ in range(args.repeat):
                for engine in args.engines:
                    for name, rate in run(engine, threads, folder).items():
                        best[engine][name] = max(best[engine].get(name, 0.0), rate)
            for engine, rates in best.items():
                print(f"{threads} threads  {engine:12s}", {k: round(v, 2 if v < 1 else 0) for k, v in rates.items()})
            if len(best) == 2:
                a, b = best.values()
                ratios = {k: round(a[k] / b[k], 2) for k in a if k != "cached"}
                print(f"{threads} threads  ratio       ", ratios, flush=True)


def run(engine: str, threads: int, folder: str) -> dict[str, float]:
    """Measure in a fresh process, with the same arguments."""
    chosen = ["--engine", engine, "--threads", str(threads), "--model", folder]
    command = [sys.executable, __file__, *sys.argv[1:], *chosen]
    root = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *sys.path])
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": root}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


if __name__ == "__main__":
    main()

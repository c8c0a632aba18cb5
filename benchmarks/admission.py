"""What it gains to hold episodes back where the KV cache cannot hold them all: with admission against without.

    python benchmarks/admission.py --repeat 3

Both play the episodes of `benchmarks/rollout.py` on an engine with a cache of about half of what they need. Without
admission every episode's requests go to the engine as they come. The order alternates; the median of each counts.
Prints seconds, the share of prompt tokens that the cache had, and the ratio; with `--kv-cache-gb 2`, what admission
costs where it is not needed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollout import LONGEST, TURNS, RandomPlayer, Spread, make_player
from safetensors.torch import load_file


class Unpaced(Spread):
    """Requests that name no session: the engine knows not which belong together."""

    async def generate(self, prompt_ids: list[int], sampling: Any, n: int = 1, images: Any = ()) -> Any:
        return await super().generate(prompt_ids, replace(sampling, session=""), n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--kv-cache-gb", type=float, default=0.008)
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()

    from rlanything.config.schema import Config, RolloutConfig
    from rlanything.engines.chat_model import ChatModel
    from rlanything.rollout.collect import Batch, Collector

    with tempfile.TemporaryDirectory() as name:
        domain, engine, chat = make_player(Path(name), args.engine, 256, args.kv_cache_gb)
        rollout = RolloutConfig(max_interaction_step=TURNS[1], max_response_tokens=LONGEST)
        batch = Batch(tasks=domain.tasks("train")[:8], num=8, seed="seed", rollout=rollout, judged=False)
        weights = load_file(Path(name) / "model.safetensors")
        runs: dict[str, list[tuple[float, float]]] = {"admission": [], "without": []}
        for _ in range(args.repeat):
            for kind, policy in (("admission", Spread(engine)), ("without", Unpaced(engine))):
                engine.load_weights(0, weights.items())  # empties its caches
                before, started = replace(engine.stats()), time.perf_counter()
                collector = Collector(RandomPlayer(domain), ChatModel(policy, chat), None, Config())
                asyncio.run(collector.groups(batch, lambda: None))
                seconds, now = time.perf_counter() - started, engine.stats()
                cached = now.cached_prompt_tokens - before.cached_prompt_tokens
                runs[kind].append((seconds, cached / (now.prompt_tokens - before.prompt_tokens)))
        engine.close()
    seconds = {kind: statistics.median(run[0] for run in found) for kind, found in runs.items()}
    for kind, found in runs.items():
        print(f"{kind:9} {seconds[kind]:6.1f} s, {found[0][1]:.0%} of prompt tokens cached")
    print(f"without / admission: {seconds['without'] / seconds['admission']:.2f}")


if __name__ == "__main__":
    main()

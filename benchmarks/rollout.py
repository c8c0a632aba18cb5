"""What it gains that no episode waits for another: the loop's rollouts against the same in lockstep.

    python benchmarks/rollout.py --repeat 3

Both play the same episodes of generated games in the real simulator, on the same engine and random model: the same
actions, the same number of turns, and responses of the same lengths, drawn from a log-normal distribution as of a
model that thinks (median 24 tokens, at most 192). In lockstep every turn waits for the longest response of all
episodes, as where a batch is generated and then stepped. The order alternates; the median of each counts. Prints
seconds, the ratio, and the share of the time that the engine was busy (`async_vllm`, the engine of replicas: that it
had requests). Both make the same tokens in other numbers of forward passes, from which follows what a pass takes
whatever it holds, and what the tokens themselves take.

The model (12M parameters) is wide and shallow with one small KV head, so that a token's KV cache weighs 1e-5 of the
weights, as in a 7B model (4e-6). Where it weighs more, as in the models of the quickstart, a long batch costs a CPU
nearly as much as its sequences one by one, and waiting costs less than it does on an accelerator.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from make_tiny_models import make_tokenizer  # noqa: E402

VOCAB = 1457  # of the quickstart
MEDIAN, SIGMA, LONGEST = 24, 1.0, 192  # tokens of a response
TURNS = (4, 20)  # of an episode: uniform


class Spread:
    """An engine whose responses have lengths drawn from the request's seed."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.version = engine, 0

    async def generate(self, prompt_ids: list[int], sampling: Any, n: int = 1, images: Any = ()) -> Any:
        length = int(MEDIAN * random.Random(sampling.seed).lognormvariate(0, SIGMA))
        sampling = replace(sampling, max_tokens=max(2, min(LONGEST, length)), stop_token_ids=())
        [completion] = await self.engine.generate(prompt_ids, sampling, n)
        return [replace(completion, stop_reason="stop")]


class Lockstep(Spread):
    """Requests leave together once every live episode has one, and all wait for the last response."""

    def __init__(self, engine: Any, live: int) -> None:
        super().__init__(engine)
        self.live, self.waiting = live, []

    async def generate(self, *request: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self.leave()
        return await future

    def end(self) -> None:
        self.live -= 1
        self.leave()

    def leave(self) -> None:
        if self.waiting and len(self.waiting) == self.live:
            asyncio.get_running_loop().create_task(self.serve(self.waiting))
            self.waiting = []

    async def serve(self, batch: list) -> None:
        responses = await asyncio.gather(*(Spread.generate(self, *request) for request, _ in batch))
        for (_, future), response in zip(batch, responses, strict=True):
            future.set_result(response)


class Ending:
    """An environment whose episode ends after so many turns."""

    def __init__(self, env: Any, turns: int) -> None:
        self.env, self.left = env, turns

    async def reset(self) -> Any:
        return await self.env.reset()

    async def step(self, action: str | None) -> Any:
        self.left -= 1
        return replace(await self.env.step(action), done=self.left == 0)

    async def close(self) -> None:
        await self.env.close()


class RandomPlayer:
    """A domain in which every response stands for an admissible command, drawn from what it says."""

    def __init__(self, domain: Any) -> None:
        self.domain, self.played = domain, Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.domain, name)

    def make_env(self, task: Any) -> Ending:
        self.played[task.id] += 1
        return Ending(self.domain.make_env(task), random.Random(f"{task.id}/{self.played[task.id]}").randint(*TURNS))

    def parse_action(self, text: str, observation: Any) -> Any:
        from rlanything.domains.base import ParsedAction

        return ParsedAction(random.Random(text).choice(observation.actions))


def make_player(folder: Path, kind: str, seqs: int, kv_cache_gb: float = 2.0) -> tuple[Any, Any, Any]:
    """(domain, engine, chat) on generated games and a random model."""
    import torch
    from alfworld_games.files import write_packed
    from alfworld_games.generator import generate_games
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rlanything.config.schema import Config, DatasetConfig, EngineConfig, ExperimentConfig, ModelConfig
    from rlanything.domains.registry import make_domain
    from rlanything.engines import start_engine
    from rlanything.engines.chat import Chat

    write_packed(folder / "train.jsonl.xz", generate_games("train", 32, seed=5))
    dataset = DatasetConfig(path=str(folder), prompt="compact", options={"show_actions": "none"})
    domain = make_domain(Config(experiment=ExperimentConfig(name="rollout"), dataset=dataset))
    torch.manual_seed(0)
    shape = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=768,
        intermediate_size=2304,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    make_tokenizer(domain, VOCAB, {"policy": 200}).save_pretrained(folder)
    model, name = ModelConfig(path=str(folder)), kind.removeprefix("async_")
    settings = EngineConfig(kind=name, max_model_len=4096, max_num_seqs=seqs, kv_cache_gb=kv_cache_gb)
    engine = start_engine(model, settings, 0, folder / "engine.log", alone=kind != name)
    return domain, engine, Chat(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm", "async_vllm"])
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=8, help="a task")
    parser.add_argument("--seqs", type=int, default=256, help="max_num_seqs")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()

    from rlanything.config.schema import Config, RolloutConfig
    from rlanything.engines.chat_model import ChatModel
    from rlanything.rollout.collect import Batch, Collector

    num = args.tasks * args.episodes
    with tempfile.TemporaryDirectory() as name:
        domain, engine, chat = make_player(Path(name), args.engine, args.seqs)
        tasks = domain.tasks("train")[: args.tasks]
        rollout = RolloutConfig(max_interaction_step=TURNS[1], max_response_tokens=LONGEST)
        batch = Batch(tasks=tasks, num=args.episodes, seed="seed", rollout=rollout, judged=False)

        def play(policy: Any, on_end: Callable[[], None]) -> tuple[float, float, int, int]:
            """(seconds, those that the engine was busy, tokens, forward passes)."""
            engine.load_weights(0, weights.items())  # empties its caches
            before, started = replace(engine.stats()), time.perf_counter()
            collector = Collector(RandomPlayer(domain), ChatModel(policy, chat), None, Config())
            asyncio.run(collector.groups(batch, on_end))
            seconds, now = time.perf_counter() - started, engine.stats()
            tokens, passes = now.generated_tokens - before.generated_tokens, now.steps - before.steps
            return seconds, now.busy_s - before.busy_s, tokens, passes

        from safetensors.torch import load_file

        weights = load_file(Path(name) / "model.safetensors")
        play(Spread(engine), lambda: None)  # warms up kernels for the shapes that occur
        runs: dict[str, list[tuple[float, float, int, int]]] = {"async": [], "lockstep": []}
        for _ in range(args.repeat):
            runs["async"].append(play(Spread(engine), lambda: None))
            lockstep = Lockstep(engine, num)
            runs["lockstep"].append(play(lockstep, lockstep.end))
        engine.close()
    seconds = {name: statistics.median(run[0] for run in found) for name, found in runs.items()}
    busy = {name: statistics.median(run[1] for run in found) for name, found in runs.items()}
    passes = {name: found[0][3] for name, found in runs.items()}
    for name, found in runs.items():
        told = f"engine busy {busy[name] / seconds[name]:.0%}, {found[0][2]} tokens of {num} episodes"
        print(f"{name:9} {seconds[name]:6.1f} s, {told} in {passes[name]} passes")
    print(f"lockstep / async: {seconds['lockstep'] / seconds['async']:.2f}")
    a_pass = (busy["lockstep"] - busy["async"]) / (passes["lockstep"] - passes["async"])
    tokens_s = busy["async"] - a_pass * passes["async"]
    print(f"a pass takes {1000 * a_pass:.1f} ms whatever it holds; the tokens take {tokens_s:.1f} s in both")


if __name__ == "__main__":
    main()

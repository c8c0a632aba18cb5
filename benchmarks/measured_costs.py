"""Measures what this code's own work costs on this machine, for simulate_cluster.py: real functions, drawn lengths."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from simulation import Clock, Costs, Episode, Host, Workload, draw_episodes

from rlanything.config.schema import Config

NUM_SET, SET_BYTES = 2000, 1 << 17  # sets of samples of one update, and bytes of each
NUM_GROUP = 100  # summaries that are read in one go


class Holder:
    """A Ray actor that stands for a host with samples, and for a learner rank that takes them and does not train."""

    def give(self) -> list[np.ndarray]:
        """`NUM_SET` objects as large as sets of samples."""
        return [np.zeros(SET_BYTES, np.uint8) for _ in range(NUM_SET)]

    def free_address(self) -> tuple[str, int]:
        return "", 0

    def join(self, world: int, host: str, port: int) -> None:
        pass

    def shares(self, role: str, sets: Sequence[Any]) -> list[list[list[int]]]:
        from rlanything.learner.packing import rank_shares, split_minibatches

        return [rank_shares(part, sets, 2) for part in split_minibatches(sets, 4, np.random.default_rng(0))]

    def train(self, role: str, nums: Sequence[int], *samples: Any) -> dict[str, float]:
        return dict.fromkeys(("entries", "tree_tokens", "sample_tokens", "padded_tokens"), 1.0)


def made_group(episodes: Sequence[Episode]) -> Any:
    """A group of episodes with these lengths: every other one is solved, and judges disagree."""
    from rlanything import types

    def exchange(prompt: list[int], response: list[int]) -> dict[str, Any]:
        n = len(response)
        return {
            "prompt": types.Prompt(ids=prompt),
            "response_ids": response,
            "logprobs": [-0.5] * n,
            "text": "word" * n,
        }

    group, rng = types.Group(task=types.Task(id="q", payload={}), trajectories=[]), np.random.default_rng(0)
    for i, episode in enumerate(episodes):
        ids, score = rng.integers(150_000, size=1 << 17).tolist(), types.Score(success=i % 2 == 0)
        trajectory = types.Trajectory(task_id="q", index=i, score=score)
        for t in episode:
            for j, n in enumerate(t.judged):
                said = exchange(ids[: t.judge_prompt], ids[-n:])
                group.judgements.append(types.Judgement(**said, scores={(i, len(trajectory.turns)): (-1) ** j}))
            said = exchange(ids[: t.prompt], ids[t.prompt : t.prompt + t.response])
            trajectory.turns.append(types.Turn(**said, action="look", observation="seen"))
        group.trajectories.append(trajectory)
    return group


def measure(config: Config, load: Workload, tokenizer: str) -> Costs:
    """The best of 3: one task's group of drawn lengths, and a Ray of its own with actors that do nothing else."""
    import ray
    import torch

    from rlanything.algorithm.diagnostics import figures
    from rlanything.algorithm.summary import Tally
    from rlanything.algorithm.tasks import TaskPool
    from rlanything.cluster.board import Board
    from rlanything.cluster.calls import result
    from rlanything.cluster.learners import LearnerGroup, RemoteLearner
    from rlanything.config.schema import ModelConfig
    from rlanything.engines.chat import Chat
    from rlanything.learner import packing
    from rlanything.rollout.digest import digest
    from rlanything.runs.store import write_groups
    from rlanything.types import SampleSet
    from rlanything.weights import checksum

    config = config.model_copy(deep=True)
    config.algorithm.band = config.reward.band = [0.0, 1.0]
    episodes = draw_episodes(load, config, config.rollout.num_rollout_per_trial)
    domain: Any = SimpleNamespace(same_answer=lambda task, answer: answer, rewriting=None)  # its own work is left out
    group = made_group(episodes)
    whole = digest(group, domain, config, trains=True)
    sets = [one for of_role in whole.sets.values() for one in of_role]
    made = [sample for one in sets for sample in one.samples]
    stripped = replace(
        whole, sets={role: [replace(one, samples=None) for one in of] for role, of in whole.sets.items()}
    )
    packed = pickle.dumps([stripped] * NUM_GROUP, 5)
    pool = TaskPool.of([group.task], 0.2, 0.8, 0)

    def digested() -> None:
        found = digest(group, domain, config, trains=True)
        pickle.dumps([one.samples for of_role in found.sets.values() for one in of_role], 5)
        with tempfile.TemporaryDirectory() as folder:
            write_groups(Path(folder) / "step.parquet", [group], lambda task: "", lambda task: "")

    def summed() -> None:
        summaries = [one.summary for one in pickle.loads(packed)]
        pool.settle(summaries, 1, 2)
        pool.drain_events()
        figures(Tally.of_all(one.tally for one in summaries))

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    answer = ray.remote(Board).options(num_cpus=0).remote().current.remote  # of an actor that has little to do
    ready = [answer("policy") for _ in range(1000)]
    ray.get(ready)
    host, *ranks = (ray.remote(Holder).options(num_cpus=0).remote() for _ in range(3))
    route: Any = None  # weights are not sent
    learner = RemoteLearner(LearnerGroup(ranks, 60.0), "policy", route)

    references = host.give.options(num_returns=NUM_SET).remote()
    ray.wait(references, num_returns=NUM_SET)

    def updated() -> None:
        given = enumerate(references)
        learner.update([SampleSet(key=f"{i}", num=9, tokens=i, tree_tokens=i, samples=one) for i, one in given])

    carried, tokens = Host(Clock(), {}, episodes, Costs(), 0).carried, sum(len(s.ids) for s in made)
    row, zeros = config.training.policy.micro_batch_tokens, torch.zeros(1 << 27, dtype=torch.bfloat16)
    prompt, chat = tuple(range(10_000, 14_000)), Chat(ModelConfig(path=tokenizer))
    text = "On the drawer 1, you see a mug 2, and a pencil 1.\n" * 60
    measured: dict[str, tuple[Callable[[], Any], float]] = {  # what is done, and for how many of its unit
        "call_s": (lambda: ray.get([answer("policy") for _ in range(1000)]), 1000),
        "latency_s": (lambda: [ray.get(answer("policy")) for _ in range(200)], 200),
        "wait_s": (lambda: result(ready, "an actor"), 1000 * 1000 / 2),
        "ask_s": (lambda: ray.get([answer(prompt) for _ in range(1000)]), 1000),
        "encode_s": (lambda: chat.encode(text), len(chat.encode(text))),
        "digest_s": (digested, carried),
        "group_s": (summed, NUM_GROUP),
        "set_s": (updated, NUM_SET),
        "tree_s": (lambda: packing.pack(packing.build_trees(made, row), row, row, 128), tokens),
        "put_s": (lambda: ray.put(zeros.view(torch.uint8).numpy()), 1 << 28),
        "checksum_s": (lambda: checksum.checksum([("weight", zeros)], zeros.dtype), 1 << 28),
    }
    found: dict[str, list[float]] = {name: [] for name in measured}
    for name, (call, amount) in [*measured.items()] * 3:
        started = time.perf_counter()
        call()
        found[name].append((time.perf_counter() - started) / amount)
    ray.shutdown()
    return Costs(**{name: min(times) for name, times in found.items()})

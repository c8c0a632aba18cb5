"""A step of ALFWorld's quickstart, outcomes alone, here and in TRL's GRPOTrainer: seconds by part, and peak memory.

    python -m pip install --no-deps --target cache/trl trl==1.16.0 datasets==4.7.0 dill multiprocess xxhash \
        pandas tzdata python-dateutil six
    python benchmarks/peers/trl_step.py --trl cache/trl --steps 4 --repeat 2 --threads 2

`make quickstart` must have made the model and the games. Both play the same tasks of the same environment with the
same model: 16 x 8 episodes of at most 20 turns, one update by GRPO without a KL term, float32. TRL generates through
its own `_generate_single_turn`, a turn of all episodes at a time, from a `rollout_func`; it trains an episode as one
row, with the environment's tokens masked. The two run by turns in processes of their own. A run's first step does not
count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/quickstart/alfworld/loop.yaml"
PARTS = ("step", "generation", "update", "GB")
Figures = dict[str, float]


def words(args: argparse.Namespace) -> list[str]:
    """The configuration that both run: outcomes alone, one optimizer step."""
    return [
        f"config={CONFIG}",
        f"model.policy.path={args.model}",
        f"dataset.path={args.games}",
        "reward.num_evaluation=0",
        "adaptation.enabled=false",
        "algorithm.advantage=trajectory",
        "algorithm.options={}",
        "algorithm.step_weight=0",
        "algorithm.negative_weight=1",
        "algorithm.band=[0, 1]",
        "evaluation.splits=[]",
        f"experiment.total_step={args.steps}",
        f"experiment.save_every={args.steps}",
        f"experiment.num_thread={args.threads}",
        *args.words,
    ]


def ours(args: argparse.Namespace) -> list[Figures]:
    """The figures of each step but the first, of a run of the loop."""
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "alfworld_rl.py", *words(args), f"experiment.output_dir={output}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(args.threads)}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        metrics = next(Path(output).glob("*/metrics.jsonl")).read_text().splitlines()
    records = [r for r in map(json.loads, metrics) if r["phase"] == "train"][1:]
    names = ("step_s", "seconds/rollout", "seconds/update policy", "peak_memory_gb")
    return [dict(zip(PARTS, (r[name] for name in names), strict=True)) for r in records]


def theirs(args: argparse.Namespace) -> list[Figures]:
    """The same of TRL, which runs in a process of its own with its packages."""
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "TRL_EXPERIMENTAL_SILENCE": "1"}
    environment["PYTHONPATH"] = f"{ROOT}:{Path(args.trl).resolve()}"
    command = [sys.executable, __file__, "--inside", *sys.argv[1:]]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: list[Figures] = json.loads(done.stdout.splitlines()[-1])
    return figures[1:]


class Played:
    """An episode under way: the tokens after its first prompt, and which of them the model sampled."""

    def __init__(self, env: Any, first: Any, prompt: list[int]) -> None:
        self.env, self.observation, self.prompt = env, first, prompt
        self.ids: list[int] = []
        self.sampled: list[int] = []
        self.over = False

    def add(self, ids: list[int], sampled: int) -> None:
        self.ids += ids
        self.sampled += [sampled] * len(ids)


def train_with_trl(args: argparse.Namespace) -> list[Figures]:
    """Train `args.steps` steps with TRL."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from rlanything.config.load import load_config
    from rlanything.domains.registry import make_domain
    from rlanything.engines.chat import Chat

    torch.set_num_threads(args.threads)
    config = load_config(words(args))
    domain, chat, rollout = make_domain(config), Chat(config.model.policy), config.rollout
    domain.prepare([config.dataset.train_split])
    tasks = {task.id: task for task in domain.tasks(config.dataset.train_split)}
    figures: list[Figures] = []
    seconds = {"generation": 0.0}

    async def begin(task_id: str) -> Played:
        task = tasks[task_id]
        env = domain.make_env(task)
        first = await env.reset()
        return Played(env, first, chat.prompt(domain.asked(task, first, ()), domain.tools()).ids)

    async def act(episode: Played, response: list[int], last: bool) -> None:
        episode.add(response, 1)
        parsed = domain.parse_action(chat.response_text(response), episode.observation)
        episode.observation = await episode.env.step(parsed.action)
        cut = response[-1] not in chat.stop_ids
        if episode.observation.done or cut or last:
            episode.over = True
        else:
            episode.add(chat.follow_up(domain.answer(episode.observation), domain.tools()).ids, 0)

    async def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
        episodes = [await begin(prompt) for prompt in prompts]
        for turn in range(rollout.max_interaction_step):
            acting = [e for e in episodes if not e.over]
            if not acting:
                break
            responses, _ = trainer._generate_single_turn([e.prompt + e.ids for e in acting], None, {}, 1)
            last = turn + 1 == rollout.max_interaction_step
            await asyncio.gather(*(act(e, r, last) for e, r in zip(acting, responses, strict=True)))
        scores = [await e.env.score(e.observation) for e in episodes]
        return {
            "prompt_ids": [e.prompt for e in episodes],
            "completion_ids": [e.ids for e in episodes],
            "env_mask": [e.sampled for e in episodes],
            "logprobs": None,  # the learner's own: one update on what was just sampled
            "outcome": [1.0 if score.success else -1.0 for score in scores],
        }

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        started = time.perf_counter()
        played = asyncio.run(play(prompts, trainer))
        seconds["generation"] = time.perf_counter() - started
        return played

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            step, generation = time.perf_counter() - self.started, seconds["generation"]
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            figures.append({"step": step, "generation": generation, "update": step - generation, "GB": memory})

    batch = rollout.num_trial * rollout.num_rollout_per_trial
    settings = GRPOConfig(
        output_dir=str(Path(tempfile.gettempdir()) / "trl_step"),
        use_cpu=True,
        per_device_train_batch_size=args.rows,
        gradient_accumulation_steps=batch // args.rows,
        num_generations=rollout.num_rollout_per_trial,
        max_completion_length=rollout.max_response_tokens,
        temperature=rollout.temperature,
        max_steps=args.steps,
        learning_rate=config.training.policy.lr,
        beta=0.0,
        epsilon_high=config.training.policy.clip_high,
        generation_kwargs={"eos_token_id": list(chat.stop_ids)},
        gradient_checkpointing=False,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = Dataset.from_list([{"prompt": id} for id in list(tasks)[: rollout.num_trial * args.steps]])
    trainer = GRPOTrainer(
        model=str(args.model),
        reward_funcs=lambda completions, outcome, **_: outcome,
        args=settings,
        train_dataset=rows,
        rollout_func=rollout_func,
        callbacks=[Clock()],
    )
    trainer.train()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", default="cache/trl", help="folder that holds TRL and what it needs")
    parser.add_argument("--model", default="cache/quickstart/policy")
    parser.add_argument("--games", default="cache/quickstart/games")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8, help="episodes of one of TRL's micro-batches")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", metavar="key=value", help="of the configuration, for both")
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(train_with_trl(args)))
        return
    found: dict[str, list[Figures]] = {"ours": [], "TRL": []}
    for i in range(args.repeat):
        for name, run in (("ours", ours), ("TRL", theirs))[:: -1 if i % 2 else 1]:
            found[name] += run(args)
    print(f"{'':12} {'ours':>8} {'TRL':>8}  TRL / ours")
    for part in PARTS:
        mine, other = (statistics.median(figures[part] for figures in found[name]) for name in found)
        print(f"{part + ('' if part == 'GB' else ' [s]'):12} {mine:8.2f} {other:8.2f}  {other / mine:10.2f}")


if __name__ == "__main__":
    main()

"""One step of OSWorld's recipe with the widths of Qwen3-VL-8B and two layers, on 1080p desktops.

    python benchmarks/recipe_shapes.py [--tasks 1] [--rollouts 2] [--steps 1] [--engine vllm] [--dtype auto]

The model has Qwen3-VL-8B's widths, heads, vocabulary and processor settings, two layers and random weights (1.6 billion
parameters, bfloat16), and ends a response after a few tokens. Its tokenizer is the drawn desktops'. There is no judge,
and the policy learns a LoRA adapter: gradients and AdamW's moments of all weights would not fit a laptop.

It prints what `rlanything plan` says of the step, runs desktops, engine and learner by the loop's own command, and
prints tokens, seconds and peak memory. With `--steps 4` the last prompts have three screenshots. It needs local
desktops (scripts/osworld_desktop.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from rlanything.config.schema import AlgorithmConfig
from rlanything.types import Group

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from drawn_desktop.model import END, make_tokenizer, write  # noqa: E402

TEXT = {  # Qwen3-VL-8B's config.json, but for num_hidden_layers
    "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 2, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 5_000_000, "mrope_section": [24, 20, 20], "mrope_interleaved": True
    },
}  # fmt: skip
VISION = {  # likewise, but for depth and the layers that feed the first layers of text
    "depth": 2, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16,
    "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 4096, "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
# A prompt with three screenshots has about 6,200 tokens.
LEARNER = ("lora_rank=16", "zero_stage=0", "num_update=1", "micro_batch_tokens=6656")
SIZE = {"shortest_edge": 65536, "longest_edge": 16777216}  # of its preprocessor_config.json [pixels]


def main() -> None:
    """Make the model, run one step, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where the model is kept; by default it is not")
    for name, default in (("tasks", 1), ("rollouts", 2), ("steps", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--engine", default="vllm", help="vllm or transformers (the small engine)")
    parser.add_argument("--dtype", default="auto", help="of weights: bfloat16, float32; auto: what this CPU multiplies")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.folder or Path(folder) / "model"
        if not (model / "config.json").is_file():
            make(model)
        run(model, Path(folder), args)


def make(folder: Path) -> None:
    """Write the model."""
    tokenizer = make_tokenizer()
    ids = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config=TEXT | {"eos_token_id": tokenizer.eos_token_id},
        vision_config=VISION,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    with torch.no_grad():  # it shall end its responses: otherwise each is cut, and an episode has one turn
        model.model.language_model.embed_tokens.weight[:, 0] = 100.0
        model.lm_head.weight[ids(END), 0] = 0.6
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, model, tokenizer)
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | {"size": SIZE}))


def run(model: Path, folder: Path, args: argparse.Namespace) -> None:
    """Plan one step of the loop, run it, watch its memory, and print what the metrics hold."""
    settings = [
        "config=configs/osworld_rl.yaml", "dataset.options.backend=local", "dataset.path=", "dataset.train_split=train",
        "dataset.options.desktops=1", "experiment.num_node=1", "experiment.num_device=0", "experiment.total_step=1",
        f"experiment.output_dir={folder}", "experiment.eval_every=0", "evaluation.splits=[]", "experiment.save_every=1",
        f"model.policy.path={model}", "model.reward.path=", "model.rewriter.path=", "adaptation.enabled=false",
        *(f"engine.{role}.num_replica=1" for role in ("policy", "reward", "rewriter")), "engine.policy.max_num_seqs=2",
        "engine.policy.kv_cache_gb=0.4", "dataset.prompt=compact",
        f"rollout.num_trial={args.tasks}", f"rollout.num_rollout_per_trial={args.rollouts}",
        f"rollout.max_interaction_step={args.steps}", "rollout.max_response_tokens=16", "rollout.env_timeout_s=600",
        "reward.num_evaluation=0", "algorithm.step_weight=0",
        "algorithm.advantage=recipe_shapes:all_ones", "algorithm.band=[0,1]",
        f"engine.policy.kind={args.engine}", f"engine.policy.dtype={args.dtype}", f"training.policy.dtype={args.dtype}",
        *(f"training.policy.{setting}" for setting in LEARNER),
    ]  # fmt: skip
    command = [sys.executable, "-m", "rlanything"]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}  # where `all_ones` is
    planned = subprocess.run(
        [*command, "plan", *settings], check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    print(planned[planned.index("Plan:") :], flush=True)
    started, most = time.perf_counter(), 0.0
    process = psutil.Popen([*command, "train", *settings], env=environment)
    while process.poll() is None:
        most = max(most, memory(process))
        time.sleep(1.0)
    if process.returncode:
        why = "; it was killed, perhaps for its memory" if process.returncode == -9 else ""
        sys.exit(f"the step ended with status {process.returncode}{why}; peak memory {most:.1f} GiB")
    metrics = json.loads(next(folder.glob("*/metrics.jsonl")).read_text().splitlines()[-1])
    for name in ("seconds/rollout", "policy/train_s", "policy/sample_tokens", "policy/tree_tokens"):
        print(f"{name}: {metrics[name]:,.0f}")
    print(f"one step, models loaded and saved: {time.perf_counter() - started:.0f} s; peak memory {most:.1f} GiB (RSS)")


def all_ones(group: Group, config: AlgorithmConfig) -> None:
    """An advantage rule that trains on every turn: random weights solve nothing, so every real rule gives 0."""
    for trajectory in group.valid:
        for turn in trajectory.turns:
            turn.advantage = 1.0


def memory(process: psutil.Process) -> float:
    """Resident memory of a process and its children [GiB]."""
    try:
        return sum(p.memory_info().rss for p in (process, *process.children(recursive=True))) / 2**30
    except psutil.Error:
        return 0.0


if __name__ == "__main__":
    main()

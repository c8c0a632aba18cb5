"""A handful of problems with their solutions, and a tiny model that has seen them: the coding domain's small world."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

PROBLEMS = [
    ("Print the sum of a and b.", "a, b = map(int, input().split())\nprint(a + b)", ["1 2", "5 7", "-3 3", "10 20"]),
    ("Print the product of a and b.", "a, b = map(int, input().split())\nprint(a * b)", ["1 2", "5 7", "-3 3", "4 5"]),
    (
        "Print the larger of a and b.",
        "a, b = map(int, input().split())\nprint(max(a, b))",
        ["1 2", "7 5", "-3 -4", "2 2"],
    ),
    (
        "Print the smaller of a and b.",
        "a, b = map(int, input().split())\nprint(min(a, b))",
        ["1 2", "7 5", "-3 -4", "2 2"],
    ),
    ("Print the word backwards.", "print(input()[::-1])", ["abc", "xy", "noon", "a"]),
    ("Print the length of the word.", "print(len(input()))", ["abc", "xy", "noon", "a"]),
]


def rows() -> list[dict]:
    """The problems as a data file has them, with what their solutions print."""
    found = []
    for question, solution, inputs in PROBLEMS:
        outputs = []
        for given in inputs:
            printed: list[str] = []
            exec(solution, {"input": lambda given=given: given, "print": lambda x, out=printed: out.append(str(x))})
            outputs.append(printed[0])
        found.append(
            {"question": question, "test_method": "stdio", "test_time_limit": 2, "solution": solution}
            | {"test_input": [f"{given}\n" for given in inputs], "test_output": outputs, "kind": question.split()[2]}
        )
    return found


def make_coding_world(root: Path, updates: int = 130) -> tuple[Path, Path]:
    """Folders of problems (train and eval, the same) and of a model that solves some of them."""
    from builders import config_of
    from make_tiny_models import make_model, make_tokenizer

    from rlanything.algorithm.samples import sample_sets
    from rlanything.config.schema import LearnerConfig, ModelConfig
    from rlanything.conversations import encode
    from rlanything.domains.coding.domain import CodingDomain
    from rlanything.engines.chat import Chat
    from rlanything.learner.deepspeed import Learner

    problems, model = root / "problems", root / "model"
    problems.mkdir()
    for split in ("train", "eval"):
        (problems / f"{split}.json").write_text(json.dumps(rows()))
    domain = CodingDomain(config_of("coding", problems))
    tokenizer = make_tokenizer(domain, 512, {"policy": 50, "reward": 50})
    make_model(tokenizer, hidden=64, layers=2, seed=0).save_pretrained(root / "untrained")
    tokenizer.save_pretrained(root / "untrained")
    chat = Chat(ModelConfig(path=str(root / "untrained")))
    config = LearnerConfig(lr=1e-2, schedule="linear", num_update=1, dtype="float32", micro_batch_tokens=2048)
    learner = Learner(ModelConfig(path=str(root / "untrained")), config, updates, log_path=root / "learner.log")
    streams = [domain.demonstrations(role, "train", 0) for role in ("policy", "reward")]
    for _ in range(updates):
        metrics = learner.update_supervised(sample_sets([encode(chat, c) for s in streams for c in islice(s, 8)]))
    learner.export(model)
    learner.close()
    (root / "loss").write_text(f"{metrics['loss']:.3f}")
    return problems, model

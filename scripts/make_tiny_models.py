"""Make a tiny Qwen3 with a small vocabulary of its own, to be warm-started on a CPU.

The tokenizer learns from demonstrations of all three roles. It keeps names such as "mug 2" whole, and the phrases of
the room's answers. An episode is then a third as long as with a general vocabulary, and to name an object that was
seen, the model copies one token.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from alfworld_games import pieces
from coding_problems import GENERATED
from reasoning_problems import GENERATED_REASONING
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import Config, DatasetConfig, ExperimentConfig, RolloutConfig
from rlanything.domains.base import Domain
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.processes.guard import run_guarded

# Parts of coding's texts: fences, and what every solution of a generated problem shares.
CODE = [
    *(r"```python\n", r"```input\n", r"\n```input\n", r"\n```\n```output\n", r"\n```", r"Write one test\."),
    *(r"x = list\(map\(int, input\(\)\.split\(\)\)\)\n", r"x = input\(\)\n"),
    *(r"x = \[", r"x = ", r"print\(", r" for v in x", r" if v ", r"\)\)\)", r"\)\)"),
    *(r'\{"question": "', r'\.", "tests": \[\{"input": "', r'", "steps": "', r'", "output": "'),
    *(r'"\}, \{"input": "', r'"\}\]\}', " -> "),
    # Words. A word without a vowel is a generated problem's data, and goes letter by letter.
    *(" ?[A-Za-z]*[aeiouy][A-Za-z]*", "[A-Za-z]"),
]
# Parts of reasoning's texts: calls, boxes, numbers of two digits, words.
CALLS = [
    r'<tool_call>[\n ]\{"name": "code_interpreter", "arguments": \{"code": "',
    *(r'"\}\}[\n ]</tool_call>', r"\\n", r"\\boxed\{", r"print\(", r"\)", r"\*\*", "[0-9]{1,2}", " ?[A-Za-z]+"),
]
# Patterns of what the tokenizer keeps whole.
PIECES = {"alfworld": pieces.PIECES, "coding": CODE, GENERATED: CODE, GENERATED_REASONING: CALLS}
SPECIAL = ["<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
MORE_SPECIAL = {GENERATED_REASONING: ["<|tool|>"]}  # of single domains, by their name
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NUM_TEXT = {"policy": 3000, "reward": 300, "rewriter": 1000}  # demonstrations that the tokenizer learns from
INIT_STD = 0.06  # of the weights; with Qwen3's own 0.02 so small a model learns far more slowly


def texts(domain: Domain, numbers: dict[str, int]) -> Iterator[str]:
    """Yield all messages of demonstrations; `numbers` says how many demonstrations each role has."""
    for role, number in numbers.items():
        try:
            stream = domain.demonstrations(role, "train", seed=0)
        except TaskError:  # a user's domain may have no demonstrations for some roles
            continue
        for conversation in islice(stream, number):
            yield from (m["content"] for m in conversation.messages)


def make_tokenizer(domain: Domain, vocab_size: int, numbers: dict[str, int]) -> PreTrainedTokenizerFast:
    """Byte-level BPE over pieces that a pattern cuts out: names, phrases, words, everything else."""
    pieces_of_domain = PIECES.get(domain.config.dataset.domain, [])
    pattern = "|".join([*pieces_of_domain, " ?[A-Za-z]+", "[0-9]", r"\s", r"[^A-Za-z0-9\s]"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(domain, numbers), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|endoftext|>")
    more = MORE_SPECIAL.get(domain.config.dataset.domain, [])
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[2:] + more})
    fast.chat_template = TEMPLATE
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, seed: int) -> Qwen3ForCausalLM:
    """A randomly initialised Qwen3."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 128),
        head_dim=64,
        intermediate_size=3 * hidden,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        initializer_range=INIT_STD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    compose_names(model, tokenizer, seed)
    return model


def compose_names(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
    """Start the embedding of "mug 2" as that of " mug" plus that of a 2, and "mug:" as " mug".

    The task says "mug", the thought "mug:" and the room "mug 2". Training would have to bring unrelated vectors
    together, type by type and number by number.
    """
    embedding = model.get_input_embeddings().weight
    random = torch.Generator().manual_seed(seed)
    numbers: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for token in range(len(tokenizer)):
            text = tokenizer.decode([token])
            word = re.match("[a-z]+", text)
            if word is None:
                continue
            kind = embedding[tokenizer.encode(f" {word[0]}")].mean(0)
            if re.fullmatch(pieces.NAME, text):
                number = text.rpartition(" ")[2]
                numbers.setdefault(number, INIT_STD * torch.randn(embedding.shape[1], generator=random))
                embedding[token] = (kind + numbers[number]) / 2**0.5
            elif re.fullmatch(pieces.TOPIC, text):
                embedding[token] = kind


def make_small_world(root: Path, hidden: int = 64) -> tuple[Path, Path]:
    """Make folders of games and of a model for tests and benchmarks.

    There are 24 games to train on and 6 of each evaluation split. The model, a Qwen3 of 0.2M parameters if `hidden` is
    64, has seen enough demonstrations of all roles to write actions, scores and proposals in their form.
    """
    # Imported here, because DeepSpeed's import takes long and making a model does not need it.
    from alfworld_games.files import write_packed
    from alfworld_games.generator import generate_games

    from rlanything.config.schema import LearnerConfig, ModelConfig
    from rlanything.conversations import encode
    from rlanything.engines.chat import Chat
    from rlanything.learner.deepspeed import Learner

    games, model = root / "games", root / "model"
    for split, count in (("train", 24), ("eval_in_distribution", 6), ("eval_out_of_distribution", 6)):
        write_packed(games / f"{split}.jsonl.xz", generate_games(split, count, seed=3))
    dataset = DatasetConfig(path=str(games), prompt="compact", options={"show_actions": "here"})
    rollout = RolloutConfig(max_interaction_step=20)
    domain = make_domain(Config(experiment=ExperimentConfig(name="tiny"), dataset=dataset, rollout=rollout))
    tokenizer = make_tokenizer(domain, 1024, {"policy": 60, "reward": 20, "rewriter": 30})
    make_model(tokenizer, hidden, layers=2, seed=0).save_pretrained(root / "untrained")
    tokenizer.save_pretrained(root / "untrained")
    chat = Chat(ModelConfig(path=str(root / "untrained")))
    config = LearnerConfig(lr=1e-2, num_update=1, dtype="float32", micro_batch_tokens=2048)
    learner = Learner(ModelConfig(path=str(root / "untrained")), config, 0, log_path=root / "learner.log")
    # An answer of the judge is three tokens, and the answers to one episode share its transcript: many cost little.
    shares = (("policy", 8), ("reward", 32), ("rewriter", 8))
    streams = [(domain.demonstrations(role, "train", 0), share) for role, share in shares]
    for _ in range(90):
        learner.update_supervised(sample_sets([encode(chat, c) for s, share in streams for c in islice(s, share)]))
    learner.export(model)
    learner.close()
    return games, model


def main() -> None:
    """Write <out>: one folder, model and tokenizer together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domain", default="alfworld", help="alfworld, coding, or module:Class of your own")
    parser.add_argument("--data", default="", help="folder of games or problems with a train split")
    parser.add_argument("--out", required=True, help="folder to write")
    parser.add_argument("--vocab", type=int, default=2048, help="vocabulary size (default 2048)")
    parser.add_argument("--hidden", type=int, default=256, help="hidden size, a multiple of 64 (default 256)")
    parser.add_argument("--layers", type=int, default=4, help="layers (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--show-actions", default="none", choices=["all", "here", "none"], help="as dataset.options.show_actions"
    )
    args = parser.parse_args()
    # With accelerate installed, saving a model imports DeepSpeed, which warns if the machine has no accelerator.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    options = {"show_actions": args.show_actions} if args.domain == "alfworld" else {}
    dataset = DatasetConfig(domain=args.domain, path=args.data, prompt="compact", options=options)
    domain = make_domain(Config(experiment=ExperimentConfig(name="tiny"), dataset=dataset))
    tokenizer = make_tokenizer(domain, args.vocab, NUM_TEXT)
    model = make_model(tokenizer, args.hidden, args.layers, args.seed)
    out = Path(args.out)
    logging.disable_progress_bar()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"{out}: {model.num_parameters() / 1e6:.1f}M parameters, vocabulary {len(tokenizer)}")


if __name__ == "__main__":
    run_guarded(main, "starts anew")

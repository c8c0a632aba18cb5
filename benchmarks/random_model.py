"""A model of Qwen2.5-0.5B's widths with random weights, whose responses end: what the loop costs without a download.

    python benchmarks/random_model.py FOLDER [--tokenizer cache/quickstart/tiny] [--response_tokens 60]

Its head is not tied to its embeddings (0.63 billion parameters, bfloat16): the first hidden unit is the same for
every token, so that the first column of the head says how probable each token is.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

WIDTHS = {  # Qwen2.5-0.5B's config.json
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000},
}  # fmt: skip
TEMPERATURE = 0.8  # of configs/alfworld_rl_one_gpu.yaml


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", default="cache/quickstart/tiny", help="a folder, or a name on the hub")
    parser.add_argument("--response_tokens", type=float, default=60.0, help="of a response in the mean, about")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    end = tokenizer.eos_token_id
    model = Qwen2ForCausalLM(Qwen2Config(**WIDTHS, tie_word_embeddings=False, eos_token_id=end))
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 100.0  # far above all others: after the last norm it is sqrt(width)
        column = model.lm_head.weight[:, 0]
        column.fill_(-0.5)  # ids that the tokenizer does not know
        column[: len(tokenizer)] = 0.0
        column[end] = TEMPERATURE * math.log(len(tokenizer) / args.response_tokens) / math.sqrt(WIDTHS["hidden_size"])
    model.save_pretrained(args.folder)
    tokenizer.save_pretrained(args.folder)
    print(f"{args.folder}: {sum(p.numel() for p in model.parameters()) / 1e9:.2f} B parameters")


if __name__ == "__main__":
    main()

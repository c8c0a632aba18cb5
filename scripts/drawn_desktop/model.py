"""A tiny Qwen3-VL: a tokenizer in which every piece of the drawn desktop is one token, and random weights."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from rlanything.domains.osworld.actions import LAST, Action, call_text
from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.solver import GRID

SPECIAL = ("<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
END, PAD = "<|im_end|>", "<|endoftext|>"
CLOSED = "}}\n</tool_call>"
PATCH = 16  # [pixels] of a side
MERGE = 2  # patches of a token's side
SIDE = 12  # places of the position embedding's side
INIT_STD = 0.06
TEMPLATE = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c.type == 'text' %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor", "patch_size": PATCH,
    "merge_size": MERGE, "temporal_patch_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "size": {"shortest_edge": (PATCH * MERGE) ** 2, "longest_edge": 10**7},
}  # fmt: skip

XS = tuple(f"{value}, " for value in range(0, LAST, GRID))
YS = tuple(f"{value}]{CLOSED}" for value in range(0, LAST, GRID))
DIGITS = tuple("0123456789")


def names() -> list[str]:
    """Everything that the screen shows and a text can name."""
    spinner = [f"{name} {sign}" for name in words.SPINNERS for sign in "+-"]
    choices = [choice for all_of in words.CHOICES.values() for choice in all_of]
    shown = (
        *words.PROGRAMS, *words.DECORATIONS, words.TRASH, *words.TABS, *words.TAB_OF, *spinner, *choices, *words.FILES,
        *words.FIELDS, *words.TYPED, words.NEW_NAME, words.OK, words.CANCEL, words.CLOSE, *words.TOOLS,
    )  # fmt: skip
    return sorted(set(shown))


def call_heads() -> list[str]:
    """The beginnings of tool calls, up to where something is filled in, and the calls that are always the same."""
    at, fixed = (0, 0), []
    for action in (
        Action(kind="key", keys=("escape",)), Action(kind="key", keys=("enter",)), Action(kind="wait", time=1.0),
        Action(kind="scroll", pixels=-5), Action(kind="scroll", pixels=5),
        Action(kind="terminate", status="success"), Action(kind="terminate", status="failure"),
    ):  # fmt: skip
        fixed.append(call_text(action))
    pointed = [
        call_text(Action(kind=kind, coordinate=at)).partition("0, ")[0]
        for kind in ("left_click", "double_click", "mouse_move", "left_click_drag")
    ]
    typed = call_text(Action(kind="type", text="x")).partition('x"')[0]
    return [f"\n{text}" for text in (*fixed, *pointed, typed)]


def frames() -> list[str]:
    """The other words of prompts and answers."""
    verbs = (
        "turn on ", "turn off ", "set ", "delete ", "rename ", "open ", "enter ", "move ", "start ", "click ", "type ",
        "press ", "point at ", "drag to ", "scroll ", " to ", " and ", " as ", " and press ", "up", "down", "esc",
        "wait", "done", "impossible", f'"{CLOSED}',
    )  # fmt: skip
    asked = (
        "<|im_start|>user\n", "<|im_start|>assistant\n", "\n", "Task: ", "\nTask: ", "\nStep ", ": ",
        "\nBefore the step: ", "\nThe step: ", "\nAfter the step: ", "\\boxed{1}", "\\boxed{-1}", "Checks:\n",
        "\nSolved: ", "%\nCritic: ", "none", "\nMake it harder.", "\nMake it easier.", '{"', '": "', '"}',
        *(f"verifier{i}" for i in range(1, 8)),
    )  # fmt: skip
    return [*verbs, *asked]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, and every piece of the drawn desktop as one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    pieces = dict.fromkeys([*call_heads(), *XS, *YS, *names(), *frames()])
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in pieces])
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3VLForConditionalGeneration:
    """Random weights. Neighbouring coordinates begin with like embeddings, and so do neighbouring places."""
    torch.manual_seed(seed)
    ids = tokenizer.convert_tokens_to_ids
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 32, "max_position_embeddings": 4096,
        "rope_parameters": rope, "tie_word_embeddings": True, "initializer_range": INIT_STD,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None,
    }  # fmt: skip
    vision = {
        "depth": 3, "hidden_size": 128, "intermediate_size": 384, "num_heads": 4, "patch_size": PATCH,
        "spatial_merge_size": MERGE, "temporal_patch_size": 2, "out_hidden_size": 192,
        "num_position_embeddings": SIDE * SIDE, "deepstack_visual_indexes": [], "initializer_range": INIT_STD,
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model = Qwen3VLForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        embedding = model.model.language_model.embed_tokens.weight
        for pieces in (XS, YS):
            embedding[ids(list(pieces))] = INIT_STD * _waves(len(pieces), embedding.shape[1], generator)
        places = model.model.visual.pos_embed.weight
        rows, columns = (_waves(SIDE, places.shape[1], generator) for _ in range(2))
        grid = (rows[:, None] + columns[None]) / math.sqrt(2)
        places.copy_(4 * INIT_STD * grid.reshape(SIDE * SIDE, -1))
    return model


def _waves(num: int, width: int, generator: torch.Generator) -> torch.Tensor:
    """Vectors [num, width] of which neighbours are alike: sines of random frequencies."""
    frequency, phase = torch.randn(width, generator=generator) * 4 * math.pi, torch.rand(width, generator=generator)
    return math.sqrt(2) * torch.sin(torch.linspace(0, 1, num)[:, None] * frequency + 2 * math.pi * phase)


def write(folder: Path, model: Qwen3VLForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write model, tokenizer and the configurations of its processors as a Hugging Face folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR, indent=2))
    video = {k: v for k, v in PROCESSOR.items() if k != "image_processor_type"}
    video["video_processor_type"] = "Qwen3VLVideoProcessor"
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video, indent=2))

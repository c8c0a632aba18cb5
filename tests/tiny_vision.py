"""Tiny models of images with random weights, and pictures for them: as the hub has them, but of 0.2M parameters."""

import json
from pathlib import Path

import torch
from chat_families import FAMILIES, write_tokenizer
from PIL import Image, ImageDraw
from transformers import (
    AutoTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 8,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 16 * 16, "longest_edge": 10**6},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


KINDS = {  # by transformers' model_type: configuration, model, processor, what the vision tower needs
    "qwen3_vl": (
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        "Qwen3VLProcessor",
        {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64},
    ),
    "qwen2_5_vl": (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        "Qwen2_5_VLProcessor",
        {"window_size": 32, "fullatt_block_indexes": [1]},
    ),
}


def write_vision_model(folder: Path, seed: int = 0, kind: str = "qwen3_vl") -> Path:
    """Write model, tokenizer and processors; returns the folder. A token shows 16 x 16 pixels."""
    config_class, model_class, processor, of_tower = KINDS[kind]
    write_tokenizer(FAMILIES["qwen3vl"], folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.convert_tokens_to_ids
    torch.manual_seed(seed)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128 if kind == "qwen2_5_vl" else 64,  # heads x 32
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "rope_parameters": rope | ({"mrope_interleaved": True} if kind == "qwen3_vl" else {}),
        "initializer_range": 0.1,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
    } | ({"head_dim": 32} if kind == "qwen3_vl" else {})
    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": 8,
        "out_hidden_size": text["hidden_size"],
        "initializer_range": 0.1,
        **of_tower,
    }
    config = config_class(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    model_class(config).save_pretrained(folder)
    settings = PROCESSOR | {"processor_class": processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    video = settings | {
        "video_processor_type": "Qwen3VLVideoProcessor" if kind == "qwen3_vl" else "Qwen2VLVideoProcessor"
    }
    del video["image_processor_type"]
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return folder


def write_picture(path: Path, size: tuple[int, int] = (64, 48), mark: int = 0) -> str:
    """A picture that differs from others by where a square stands; returns its path."""
    picture = Image.new("RGB", size, "white")
    x, y = mark % 3 * 16, mark // 3 % 3 * 16
    ImageDraw.Draw(picture).rectangle((x, y, x + 15, y + 15), fill=(200, 40 * mark % 256, 90))
    picture.save(path)
    return str(path)

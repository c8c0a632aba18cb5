"""The shape of a model's attention heads, told by the text part of its transformers config. Pure."""

from typing import Any


def head_dim(text: Any) -> int:
    """The width of one attention head."""
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def key_heads(text: Any) -> int:
    """How many heads keys and values have: fewer than queries in grouped attention, as many if a config names none."""
    return getattr(text, "num_key_value_heads", None) or text.num_attention_heads


def cached_values(text: Any) -> int:
    """Keys, or values, that one token has in the caches of all layers [numbers]."""
    return text.num_hidden_layers * key_heads(text) * head_dim(text)

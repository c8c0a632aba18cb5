"""Says of a model whether `learner.model.TreeModel` can train it, before its weights are loaded."""

from tempfile import TemporaryDirectory
from typing import Any

from rlanything.errors import LearnerError
from rlanything.weights.heads import head_dim
from rlanything.weights.images import reads_images

LOGIT_SCALINGS = ("logits_scaling", "logit_scale", "final_logit_softcapping")  # config keys that `TreeModel` ignores
FLEX_HEAD_DIM = 16  # the least that FlexAttention computes on a GPU (torch 2.13)


def check_positions(config: Any, path: str, length: int) -> None:
    """Raise LearnerError if learner and engine would rotate the positions of sequences of up to `length` differently.

    With longrope vLLM takes the factors of long sequences for all of them if any may be long, and transformers for
    those that are. With dynamic, transformers stretches by the longest sequence so far.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    own = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    if kind == "dynamic":
        raise LearnerError(
            f"model {path}: found rope_type=dynamic in config.json, with which vLLM and transformers compute "
            "differently; use a model without it"
        )
    if kind == "longrope" and own and length > own:
        raise LearnerError(
            f"engine.*.max_model_len: found {length}, but model {path} has rope_type=longrope, with which vLLM and "
            f"transformers compute differently above {own} positions; set max_model_len={own} for this role's engine, "
            "or use another model"
        )


def check_trainable(config: Any, path: str, on_accelerator: bool = False) -> None:
    """Raise LearnerError if a model cannot be trained or exported, judging by its transformers config."""
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else type(quantization).__name__
        raise LearnerError(
            f"model {path}: its weights are quantised ({method}), which cannot be trained; use the model that it was "
            "made from"
        )
    if getattr(config, "vision_config", None) is not None and not reads_images(config):
        raise LearnerError(
            f"model {path}: {type(config).__name__} reads images in a way that the learner does not know; use a model "
            "that reads an image as a grid of equal tokens, such as Qwen3-VL, or one of texts"
        )
    text = config.get_text_config()
    kinds = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if kinds:
        raise LearnerError(
            f"model {path}: found layers of kind {', '.join(kinds)}, but only full_attention can train; use a model "
            "without them, such as Qwen3 or Llama 3"
        )
    window = getattr(text, "sliding_window", None)
    if window and not getattr(text, "layer_types", None) and window < text.max_position_embeddings:
        raise LearnerError(
            f"model {path}: found sliding_window={window} in all layers, but only full_attention can train; if no "
            f"sequence is longer than {window} tokens, set sliding_window to null in config.json, which changes nothing"
        )
    if on_accelerator and (width := head_dim(text)) < FLEX_HEAD_DIM:
        raise LearnerError(
            f"model {path}: its attention heads have {width} dimensions, and FlexAttention needs {FLEX_HEAD_DIM}; "
            "train it on the CPU (experiment.num_device=0), or use a model with larger heads"
        )
    if scalings := [name for name in LOGIT_SCALINGS if getattr(text, name, None) not in (None, 1)]:
        raise LearnerError(
            f"model {path}: its config sets {', '.join(scalings)}, which the learner does not apply; "
            "use a model without them"
        )
    with TemporaryDirectory() as folder:  # now, and not at the first checkpoint
        try:
            config.save_pretrained(folder)
        except OSError:  # a full disk is no fault of the file
            raise
        except Exception as error:  # each model's config has its own checks
            raise LearnerError(
                f"model {path}: transformers reads its config.json but cannot write it, so no checkpoint could be "
                f"exported: {error}; correct that file"
            ) from error

"""Engines make all tokens. `check_model` checks a model without loading it, `start_engine` starts an engine on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import Engine, EngineError
from rlanything.engines.process import ProcessEngine
from rlanything.weights.files import MAX_REASON, check_files, local_folder
from rlanything.weights.heads import cached_values, key_heads
from rlanything.weights.images import reads_images

if TYPE_CHECKING:
    from rlanything.engines.chat import Chat

FOUR_BIT = ("awq", "gptq")  # vLLM's kernel for these (cpu_gemm_wna16, vLLM 0.32) is left out without AVX-512
NO_TEXT = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMaskedLM", "RewardModel")
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")  # a tokenizer has at least one of these


def start_engine(
    model: ModelConfig, config: EngineConfig, seed: int, log_path: Path, alone: bool = False, sleeps: bool = False
) -> Engine:
    """Start an engine on a model that `check_model` has accepted.

    vLLM's log goes to `log_path`, and so do the stacks of an engine that hangs. `alone` says that the engine is a
    replica and the only engine of this process; vLLM then computes in a further process. `sleeps` says that the engine
    shares its accelerator with learners.

    Raises EngineError if the engine cannot start.
    """
    if config.own_process:
        return ProcessEngine(model, config, seed, log_path)
    if config.kind == "transformers":
        from rlanything.engines.small.engine import TransformersEngine

        return TransformersEngine(model, config, seed, log_path)
    try:  # vLLM takes seconds to import, and need not be installed
        from rlanything.engines.vllm.asynchronous import AsyncVLLM
        from rlanything.engines.vllm.in_process import InProcessVLLM
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine.*.kind=vllm: {error}; run make setup, or set kind=transformers for the small engine, which "
            "computes on the CPU"
        ) from error
    return (AsyncVLLM if alone else InProcessVLLM)(model, config, seed, log_path, sleeps)


def check_model(model: ModelConfig, config: EngineConfig) -> Chat:
    """Check everything about the model that can be checked without loading its weights. Returns its chat.

    Raises ModelError if a file of the model is missing or cut; EngineError if its folder is none of a model, if a token
    has no embedding, if it has too few positions for `max_model_len` or if its attention heads cannot be shared out;
    ChatError if the tokenizer or its chat template cannot be used.
    """
    from huggingface_hub import constants
    from transformers import AutoConfig

    from rlanything.engines.chat import Chat

    folder = Path(model.path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            inside = next(iter(sorted(folder.glob("*/config.json"))), None)
            hint = f"; {inside.parent} is one" if inside else ""
            raise EngineError(
                f"model.path={model.path!r} has no config.json, expected a Hugging Face model folder{hint}"
            )
        # Without one transformers would make an empty tokenizer from config.json's model_type, and say nothing.
        if not any(next(folder.glob(p), None) for p in TOKENIZER_FILES):
            raise EngineError(f"model.path={model.path!r} has no tokenizer, expected tokenizer.json beside config.json")
    elif folder.is_absolute() or model.path.startswith((".", "~")) or model.path.count("/") > 1:  # no name of the hub
        raise EngineError(f"model.path={model.path!r} is no folder: make or download the model, or correct the path")
    own = folder if folder.is_dir() or not constants.HF_HUB_OFFLINE else local_folder(model.path)
    if own.is_dir():  # without a network the hub's cache must hold the whole model
        check_files(own)
    try:
        whole = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        text = whole.get_text_config()
    except Exception as error:  # each model's config has its own checks
        why = " ".join(str(error).split())[:MAX_REASON]
        if "trust_remote_code" in str(error):
            why += "; to run the code that the model brings, set trust_remote_code=true for this role's model"
        what = "config.json cannot be read" if folder.is_dir() else "no such folder, and the hub did not give it"
        raise EngineError(f"model.path={model.path!r}: {what}: {why}") from error
    _check_generates(whole, model.path)
    if config.kind == "transformers" and getattr(whole, "vision_config", None) is not None and not reads_images(whole):
        raise EngineError(
            f"model.path={model.path!r}: {type(whole).__name__} reads images in a way that the small engine does not "
            "know; set this role's engine.*.kind=vllm"
        )
    chat = Chat(model)
    token, largest = max(chat.vocabulary().items(), key=lambda item: item[1])
    if largest >= text.vocab_size:
        raise EngineError(
            f"model.path={model.path!r}: its tokenizer has ids up to {largest} ({token!r}), but vocab_size="
            f"{text.vocab_size} in config.json means that ids from {text.vocab_size} on have no embedding; use the "
            "tokenizer that belongs to the model, or enlarge the embedding (resize_token_embeddings) and save the model"
        )
    _check_length(text, model.path, config.max_model_len)
    _check_heads(text, model.path, config.tensor_parallel_size)
    return chat


def check_quantised(config: Any, path: str, kind: str, on_accelerator: bool) -> None:
    """Raise EngineError if an engine of this kind cannot compute with a model's quantised weights on this machine."""
    import torch

    quantization = getattr(config, "quantization_config", None) or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    if method and kind == "transformers":
        raise EngineError(
            f"model.path={path!r}: its weights are quantised ({method}), which the small engine cannot serve; set this "
            "role's engine.*.kind=vllm, or use the model that it was made from"
        )
    if method in FOUR_BIT and not on_accelerator and (found := torch.backends.cpu.get_cpu_capability()) != "AVX512":
        raise EngineError(
            f"model.path={path!r}: its weights are quantised ({method}), and vLLM computes with these on a CPU only if "
            f"it has AVX-512 (this one: {found}); use the model that it was made from, or a GPU"
        )


def check_cache(text: Any, config: EngineConfig) -> None:
    """Raise EngineError if one sequence of `max_model_len` tokens does not fit a CPU engine's `kv_cache_gb`.

    `text` is the text part of a model's config. A model that caches less than all keys and values (MLA, windows, other
    layers than attention) is left to vLLM.
    """
    from rlanything.engines.local import GIB
    from rlanything.weights.precision import torch_dtype

    other = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if other or any(getattr(text, name, None) for name in ("kv_lora_rank", "sliding_window", "layers_block_type")):
        return
    if not getattr(text, "num_attention_heads", None):
        return
    token = 2 * cached_values(text) * torch_dtype(config.dtype, False).itemsize
    if (needed := token * config.max_model_len / GIB) > config.kv_cache_gb:
        raise EngineError(
            f"engine.*.kv_cache_gb: found {config.kv_cache_gb:g}, which holds {int(config.kv_cache_gb * GIB / token)} "
            f"tokens, expected at least max_model_len={config.max_model_len}: raise it to {needed:.3f}, or lower "
            "max_model_len"
        )


def _check_generates(config: Any, path: str) -> None:
    """Raise EngineError if a model classifies, scores or embeds texts: every role's model must write them."""
    names = [name for name in getattr(config, "architectures", None) or () if name.endswith(NO_TEXT)]
    embeds = (Path(path) / "modules.json").is_file()  # of sentence-transformers
    if names or embeds:
        what = f"architectures in config.json names {names[0]}" if names else "modules.json makes it an embedding model"
        raise EngineError(
            f"model.path={path!r}: {what}, but policy, reward model and rewriter must write text; use a model for "
            "generation, such as an instruct model"
        )


def _check_length(text: Any, path: str, length: int) -> None:
    """Raise EngineError if sequences could be longer than a model has positions, which vLLM refuses."""
    positions = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    if positions and length > positions and rope.get("rope_type", "default") == "default":  # others stretch positions
        raise EngineError(
            f"engine.*.max_model_len: found {length}, but model.path={path!r} has {positions} positions "
            f"(max_position_embeddings in config.json); set max_model_len={positions} for this role's engine"
        )


def _check_heads(text: Any, path: str, size: int) -> None:
    """Raise EngineError if `size` workers cannot share out a model's attention heads."""
    if size > 1:
        if text.num_attention_heads % size:
            raise EngineError(
                f"tensor_parallel_size={size} does not divide the {text.num_attention_heads} attention heads of "
                f"model.path={path!r}; choose a divisor of both them and experiment.num_device"
            )
        kv_heads = key_heads(text)
        if kv_heads % size and size % kv_heads:  # vLLM gives a worker several of them, or several workers the same one
            raise EngineError(
                f"tensor_parallel_size={size} neither divides the {kv_heads} key-value heads of model.path="
                f"{path!r} nor is a multiple of them; choose one that does"
            )

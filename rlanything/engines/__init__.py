"""Engines make all tokens: `make_engine` starts the one that a configuration names."""

from __future__ import annotations

from pathlib import Path

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import Engine, EngineError
from rlanything.engines.process import Encoder, ProcessEngine

KINDS = ("vllm", "transformers")
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "tekken.json")  # one of them holds a tokenizer, by its library


def make_engine(
    model: ModelConfig,
    config: EngineConfig,
    seed: int,
    log_path: Path,
    encoder: Encoder | None = None,
    alone: bool = False,
    sleeps: bool = False,
) -> Engine:
    """Start an engine on `model.path`. vLLM's log goes to `log_path`, and the stacks of either where it hangs.

    `alone`: it is one of several replicas, and the only engine of this process; vLLM's then computes in one of its own.
    `sleeps`: such a one that shares its accelerator with learners.

    Raises EngineError where the kind is unknown or the model cannot serve: missing, or without a chat template.
    """
    if config.kind not in KINDS:
        raise EngineError(f"engine.kind={config.kind!r} is unknown, expected one of {', '.join(KINDS)}")
    check_model(model, config)
    if config.own_process:
        return ProcessEngine(model, config, seed, log_path, encoder)
    if config.kind == "vllm":  # imported here: vLLM takes seconds to import and need not be installed
        try:
            from rlanything.engines.vllm.asynchronous import AsyncVLLM
            from rlanything.engines.vllm.in_process import InProcessVLLM
        except ModuleNotFoundError as error:
            raise EngineError(
                f"engine.*.kind=vllm: {error}; run make setup, or set kind=transformers for the small "
                "engine, which computes on the CPU"
            ) from error
        kind = AsyncVLLM if alone else InProcessVLLM
        return kind(model.path, config, log_path, model.trust_remote_code, seed, sleeps)
    from rlanything.engines.small.engine import TransformersEngine

    return TransformersEngine(model.path, config, log_path, trust_remote_code=model.trust_remote_code, seed=seed)


def check_model(model: ModelConfig, config: EngineConfig) -> None:
    """Raise EngineError where the model cannot serve: missing, no chat template, heads that cannot be shared out."""
    from transformers import AutoConfig, AutoTokenizer

    folder = Path(model.path)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise EngineError(f"model.path={model.path!r} has no config.json, expected a Hugging Face model folder")
    looks_local = folder.is_absolute() or model.path.startswith((".", "~")) or model.path.count("/") > 1
    if looks_local and not folder.is_dir():
        raise EngineError(f"model.path={model.path!r} is no folder: make or download the model, or correct it")
    if folder.is_dir() and not any(next(folder.glob(p), None) for p in TOKENIZER_FILES):
        # transformers would make an empty tokenizer from config.json's model_type, and say nothing.
        raise EngineError(f"model.path={model.path!r} has no tokenizer, expected tokenizer.json beside config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"model.path={model.path!r} has no tokenizer that loads, expected tokenizer.json beside config.json or a "
            f"reachable hub model: {error}"
        ) from error
    if not tokenizer.chat_template:
        raise EngineError(
            f"the tokenizer of model.path={model.path!r} has no chat template, expected one: add chat_template.jinja "
            "to the folder or use an instruct model"
        )
    size = config.tensor_parallel_size
    if size > 1:
        text = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code).get_text_config()
        if text.num_attention_heads % size:
            raise EngineError(
                f"tensor_parallel_size={size} does not divide the {text.num_attention_heads} attention heads of "
                f"model.path={model.path!r}; choose a divisor of both them and experiment.num_device"
            )
        shared = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        if shared % size and size % shared:  # vLLM gives a worker several of them, or several workers the same one
            raise EngineError(
                f"tensor_parallel_size={size} neither divides the {shared} key-value heads of model.path="
                f"{model.path!r} nor is a multiple of them; choose one that does"
            )

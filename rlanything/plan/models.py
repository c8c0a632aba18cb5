"""Checks a run's models by their small files, before any is loaded."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_OFFLINE
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.config.section import Role
from rlanything.domains.base import Domain
from rlanything.engines import check_cache, check_model, check_quantised
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError, ModelError
from rlanything.learner.trainable import check_positions, check_trainable
from rlanything.plan.plan import Plan
from rlanything.weights.files import loading, local_folder, tensor_shapes, untied_head, whole_numbers
from rlanything.weights.images import reads_images

REMEDY = "use the config.json that belongs to these weights"
LAYER = re.compile(r"\blayers\.(\d+)\.")  # in the name of a tensor


def check_models(plan: Plan, roles: Iterable[Role]) -> dict[Role, Chat]:
    """Check the models of some roles. Returns each one's chat. Raises as `check_role` does."""
    config = plan.config
    on_accelerator = config.experiment.num_device > 0
    return {r: check_role(config.model.of(r), config.engine.of(r), r in plan.learners, on_accelerator) for r in roles}


def check_local(plan: Plan) -> dict[Role, Chat]:
    """Check the models in local folders, as `check_models` does: a hub model is looked at when the run starts."""
    return check_models(plan, [role for role in plan.roles if Path(plan.config.model.of(role).path).is_dir()])


def check_images(plan: Plan, chats: Mapping[Role, Chat], size: tuple[int, int] | None) -> list[str]:
    """What images of `size` (width, height) [pixels] take of each role's prompts, in a line each.

    Raises ConfigError if as many as a prompt may hold do not fit into it, ChatError if the model cannot read them.
    """
    lines = []
    for role, chat in chats.items():
        if role == "rewriter" or size is None or not (each := chat.image_tokens(size)):
            continue
        engine = plan.config.engine.of(role)
        most = each * engine.max_images
        told = f"{engine.max_images} images of {size[0]} x {size[1]} are {most} tokens"
        if most >= engine.max_model_len:
            raise ConfigError(
                f"engine.{role}.max_images={engine.max_images}: {told}, and engine.{role}.max_model_len is "
                f"{engine.max_model_len}; lower the one or raise the other"
            )
        lines.append(f"{role}: {told}, {each} each, of at most {engine.max_model_len} in a prompt")
    return lines


def check_tools(chats: Mapping[Role, Chat], domain: Domain) -> None:
    """Check that the domain reads tool calls as the policy's chat template writes them.

    Raises TaskError if it does not, ChatError if the template renders no tools.
    """
    if "policy" in chats and (tools := domain.tools()):
        chat = chats["policy"]
        domain.check_calls(lambda message: chat.decode(chat.assistant(message, tools)))


def check_role(model: ModelConfig, engine: EngineConfig, learns: bool, on_accelerator: bool = False) -> Chat:
    """Check that a model can be served and, if it `learns`, trained and exported. Returns its chat.

    Raises ModelError, EngineError, ChatError or LearnerError.
    """
    chat = check_model(model, engine)
    found = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    if learns:
        check_trainable(found, model.path, on_accelerator)
        check_positions(found, model.path, engine.max_model_len)
    check_quantised(found, model.path, engine.kind, on_accelerator)
    if not on_accelerator:
        check_cache(found.get_text_config(), engine)
    if (learns or engine.kind == "transformers") and not hasattr(found, "auto_map"):
        check_loads(found, model.path)
    return chat


def described_size(model: ModelConfig) -> int:
    """The number of parameters of the model that a config.json describes. Raises ModelError if transformers cannot make
    it."""
    with loading(model.path):
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        return sum(parameter.numel() for parameter in _described(config, model.trust_remote_code).parameters())


def _loader(config: Any) -> Any:
    """transformers' class that loads the model of a config."""
    return AutoModelForImageTextToText if reads_images(config) else AutoModelForCausalLM


def _described(config: Any, trust_remote_code: bool = False) -> torch.nn.Module:
    """The model that a config describes, on the meta device: nothing is allocated."""
    with torch.device("meta"):
        made: torch.nn.Module = _loader(config).from_config(config, trust_remote_code=trust_remote_code)
    return made


def check_loads(config: Any, path: str) -> None:
    """Check that transformers can make the model that a config describes, and that the weights' files fit it.

    Nothing is allocated: the model is made on the meta device. Raises ModelError.
    """
    with loading(path):
        made = {name: list(tensor.shape) for name, tensor in _described(config).state_dict().items()}
        with suppress(OSError):  # there is none, or none that can be read: transformers then does without
            GenerationConfig.from_pretrained(path)
    folder = local_folder(path)
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        for name, shape in tensor_shapes(file).items():
            if made.get(name, shape) != shape:
                raise ModelError(
                    f"model {path}: {name} is {shape} in {file.name}, but config.json makes it {made[name]}; {REMEDY}"
                )
    stored = files or any(folder.glob("pytorch_model*.bin"))
    if stored and (Path(path).is_dir() or HF_HUB_OFFLINE):  # else the run downloads what the hub's cache lacks
        _check_names(config, folder)
        if getattr(config.get_text_config(), "tie_word_embeddings", False) and (untied := untied_head(files)):
            raise ModelError(
                f"model {path}: config.json has tie_word_embeddings=true, but {untied[0]} differs from {untied[1]}, so "
                "that engines and learner would compute differently; set it to false, or remove the head from the files"
            )


def _check_names(config: Any, folder: Path) -> None:
    """Raise ModelError for weights that a folder's files lack, and transformers would make at random; for layers that
    config.json does not have; and for floats that are stored as whole numbers."""
    with loading(str(folder)):
        _, found = _loader(config).from_pretrained(folder, device_map="meta", output_loading_info=True)
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"model {folder}: its weights lack {len(missing)} tensors that config.json describes, such as "
            f"{missing[0]}; download the whole model, or {REMEDY}"
        )
    depth = getattr(config.get_text_config(), "num_hidden_layers", 0)
    beyond = sorted(n for n in found["unexpected_keys"] if (layer := LAYER.search(n)) and int(layer[1]) >= depth)
    if beyond:
        raise ModelError(
            f"model {folder}: its weights have {len(beyond)} tensors that config.json has no layer for, such as "
            f"{beyond[0]}; {REMEDY}"
        )
    if not getattr(config, "quantization_config", None) and (whole := whole_numbers(folder)):
        raise ModelError(f"model {folder}: {whole} holds whole numbers; expected bfloat16, float16 or float32")

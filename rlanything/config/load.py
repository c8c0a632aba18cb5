"""From a command line to a typed configuration and back to YAML.

OmegaConf merges one YAML file over the defaults and dotted overrides over the file, and resolves `${...}`. pydantic
then validates: an unknown key, a wrong type or a value outside its bounds fails here, before anything starts.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError

from rlanything.config.checks import check, check_sft
from rlanything.config.faults import messages, shown
from rlanything.config.published import PUBLISHED
from rlanything.config.reading import is_section, is_text, kind_of, read_yaml, scalar
from rlanything.config.schema import Config
from rlanything.config.section import Section
from rlanything.config.sft import SftConfig
from rlanything.errors import ConfigError

Schema = TypeVar("Schema", bound=Section)
COMMAND_LINE = "the command line"


def load_config(words: list[str], learns: bool = True) -> Config:
    """The checked configuration of a command line; `learns` is false for an evaluation.

    Raises ConfigError as `load_as` does, and if keys do not fit together.
    """
    config = load_as(Config, words)
    check(config, learns)
    return config


def load_sft(words: list[str]) -> SftConfig:
    """The checked configuration of a warm start. Raises ConfigError as `load_as` does, and for missing files."""
    config = load_as(SftConfig, words)
    check_sft(config)
    return config


def load_as(schema: type[Schema], words: list[str]) -> Schema:
    """The configuration of a command line, `config=FILE.yaml key.sub=value ...`, merged over a schema's defaults.

    Raises ConfigError with a line for every fault: the key or file, what was found and what was expected.
    """
    wrong = [word for word in words if not re.match(r"[\w-]+(\.[\w-]+)*=", word)]
    if wrong:
        raise ConfigError(f"argument {wrong[0]!r}: expected key=value, such as config=configs/alfworld_rl.yaml")
    pairs = [word.split("=", 1) for word in words]
    files = [value for key, value in pairs if key == "config"]
    if len(files) != 1:
        raise ConfigError(f"expected exactly one config=FILE.yaml, found {len(files)}")
    layer = _read_file(files[0], schema)
    overrides = [(key, _read_override(key, value, schema)) for key, value in pairs if key != "config"]
    sources = dict.fromkeys(_keys(layer), files[0])
    for key, value in overrides:
        above = accumulate(key.split("."), "{}.{}".format)
        sources |= dict.fromkeys([*above, *_keys(value, f"{key}.")], COMMAND_LINE)
    given = _merged(schema, layer, overrides, sources)
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        published = PUBLISHED if issubclass(schema, Config) else {}
        raise ConfigError("\n".join(messages(error, schema, given, sources, published=published))) from None


def to_yaml(config: Section) -> str:
    """A configuration as YAML that loads as an equal one."""
    return OmegaConf.to_yaml(OmegaConf.create(_escaped(config.model_dump()))).rstrip("\n") + "\n"


def _read_file(name: str, schema: type[Section]) -> dict[str, Any]:
    try:
        found = read_yaml(Path(name).read_text(encoding="utf-8"), schema)
    except FileNotFoundError:
        raise ConfigError(f"config={name}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config={name}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config={name}: not valid YAML: {error}") from error
    if not isinstance(found, dict | None):
        raise ConfigError(f"config={name}: found {shown(found)}, expected a mapping of sections")
    return found or {}


def _read_override(key: str, text: str, schema: type[Section]) -> Any:
    """The value of a text key is taken as it stands, any other is read as YAML.

    Only the domain knows the types of its options (no `kind`). A word there is no more than a scalar, so that `a #b`
    and `a: b` stay whole.
    """
    kind = kind_of(schema, key)
    if kind is None and not text.lstrip().startswith(("[", "{", "'", '"')):
        return scalar(text)
    try:
        return text if is_text(kind) else read_yaml(text, kind)
    except yaml.YAMLError as error:
        raise ConfigError(f"argument {f'{key}={text}'!r}: its value is no valid YAML: {error}") from error


def _keys(tree: object, above: str = "") -> Iterator[str]:
    """All dotted keys of a mapping, those of its sections too."""
    for key, value in tree.items() if isinstance(tree, Mapping) else ():
        yield above + key
        yield from _keys(value, f"{above}{key}.")


def _merged(
    schema: type[Section], layer: dict[str, Any], overrides: list[tuple[str, Any]], sources: Mapping[str, str]
) -> dict[str, Any]:
    try:
        defaults = schema.model_construct().model_dump()  # `${...}` may name any of them
        merged = OmegaConf.merge(defaults, layer)
        for key, value in overrides:  # a section is merged; options={...} replaces all options
            try:
                OmegaConf.update(merged, key, value, merge=is_section(kind_of(schema, key)))
            except (ValueError, TypeError, IndexError) as error:  # a key below a list
                if isinstance(error, OmegaConfBaseException):
                    raise
                raise ConfigError(f"{key}: there is no such key ({error})") from error
        resolved: Any = OmegaConf.to_container(merged, resolve=True)
        return dict(resolved)
    except OmegaConfBaseException as error:  # a ${...} that names nothing or is malformed
        key = getattr(error, "full_key", None) or "?"
        source = f" (from {sources[key]})" if key in sources else ""
        raise ConfigError(f"{key}: cannot be resolved: {str(error).splitlines()[0]}{source}") from error


def _escaped(value: Any) -> Any:
    """Texts in which OmegaConf would find an interpolation, escaped by its own rule."""
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value

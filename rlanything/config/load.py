"""From a command line to a typed configuration: one YAML file over the defaults, dotted overrides over the file.

An unknown key, a wrong type or a value outside its range fails here, before anything starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlanything.config.rules import validate
from rlanything.config.schema import Config
from rlanything.errors import ConfigError

Schema = TypeVar("Schema")


def load_config(argv: list[str], domain: str = "", learns: bool = True) -> Config:
    """The validated configuration of a command line, of `domain` where that is given; `learns` is false for an
    evaluation. Raises ConfigError as `load_as` does."""
    config = load_as(Config, argv)
    validate(config, learns)
    if domain and config.dataset.domain != domain:
        script = f"{config.dataset.domain}_{'rl' if learns else 'eval'}.py"
        raise ConfigError(f"dataset.domain: found {config.dataset.domain}, expected {domain}; run {script} for it")
    return config


def load_as(schema: type[Schema], argv: list[str]) -> Schema:
    """The configuration of a command line, `config=FILE.yaml key.sub=value ...`, merged over a schema's defaults.

    Raises ConfigError naming the key or file, what was found and what is expected.
    """
    if {"-h", "--help"} & set(argv):
        print("usage: python ENTRY_POINT.py config=FILE.yaml [key.sub=value ...]\n\nAll keys and their defaults:\n")
        print(OmegaConf.to_yaml(OmegaConf.structured(schema)))
        raise SystemExit(0)
    bare = [a for a in argv if "=" not in a]
    if bare:
        raise ConfigError(f"argument {bare[0]!r}: expected key=value, such as config=configs/alfworld_rl.yaml")
    files = [a.split("=", 1)[1] for a in argv if a.startswith("config=")]
    if len(files) != 1:
        raise ConfigError(f"expected exactly one config=FILE.yaml, found {len(files)}")
    merged = _merge(OmegaConf.structured(schema), _read_yaml(Path(files[0])), f"{files[0]}")
    overrides = [a for a in argv if not a.startswith("config=")]
    for word in overrides:
        try:
            override = OmegaConf.from_dotlist([word])
        except Exception as error:  # OmegaConf passes on whatever its YAML parser raises
            raise ConfigError(f"argument {word!r}: its value is no valid YAML: {error}") from error
        merged = _merge(merged, override, "the command line")
    try:
        missing = sorted(OmegaConf.missing_keys(merged))
        config = None if missing else OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:  # a ${...} that names nothing
        raise ConfigError(f"{getattr(error, 'full_key', None) or '?'}: {str(error).splitlines()[0]}") from error
    if missing:
        raise ConfigError(
            f"{missing[0]}: has no default and is not set in {files[0]}; add it there or pass {missing[0]}=..."
        )
    assert isinstance(config, schema)
    return config


def _read_yaml(path: Path) -> DictConfig:
    if not path.is_file():
        raise ConfigError(f"config={path}: there is no such file")
    try:
        loaded = OmegaConf.load(path)
    except Exception as error:  # OmegaConf passes on whatever its YAML parser raises
        raise ConfigError(f"config={path}: not valid YAML: {error}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"config={path}: expected a mapping of sections, found {type(loaded).__name__}")
    return loaded


def _merge(base: DictConfig, over: DictConfig, source: str) -> DictConfig:
    try:
        merged = OmegaConf.merge(base, over)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "?"
        cause = str(error).splitlines()[0]
        known = _siblings(base, key)
        hint = f"; known keys there: {', '.join(known)}" if known and "not in" in cause else ""
        raise ConfigError(f"{key} (from {source}): {cause}{hint}") from error
    assert isinstance(merged, DictConfig)
    return merged


def _siblings(base: DictConfig, key: str) -> list[str]:
    parent = OmegaConf.select(base, key.rpartition(".")[0]) if "." in key else base
    return sorted(map(str, parent)) if isinstance(parent, DictConfig) else []

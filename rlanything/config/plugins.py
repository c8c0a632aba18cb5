"""Code that a configuration names: `module:attribute` of the user's own, and the options that it takes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from rlanything.errors import ConfigError

T = TypeVar("T")


def load_object(key: str, name: str, shipped: Iterable[str]) -> Any:
    """What `module:attribute` names. The working directory is searched too, as `python -m` does.

    Raises ConfigError naming `key`: the form is another, the module cannot be imported, or it has no such attribute.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        close = get_close_matches(name, list(shipped), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{key}: found {name!r}, expected one of {', '.join(shipped)}, or module:name{hint}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except Exception as error:  # whatever the user's module raises on import
        raise ConfigError(
            f"{key}: found {name!r}, but importing {module_name} fails ({type(error).__name__}: {error}); expected a "
            f"module that Python can import from {here} or PYTHONPATH"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        public = [n for n in vars(module) if not n.startswith("_")]
        close = get_close_matches(attribute, public, n=1)
        hint = f"; did you mean {module_name}:{close[0]}?" if close else ""
        raise ConfigError(f"{key}: found {name!r}, but {module.__file__} defines no {attribute}{hint}") from error


def bind_options(key: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with its keyword-only parameters set from `options`, each checked against its annotation.

    Raises ConfigError naming `key` and the option that is unknown or of another type.
    """
    if not callable(function):
        raise ConfigError(f"{key}: found an object of type {type(function).__name__}, expected a function to set")
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    missing = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    name, hints, bound = getattr(function, "__name__", repr(function)), get_type_hints(function), {}
    for option, value in options.items():
        if option not in known:
            takes = f"expected one of {', '.join(known)}" if known else "it takes no options"
            raise ConfigError(f"{key}.{option}: {name} has no such option; {takes}")
        try:
            bound[option] = TypeAdapter(hints.get(option, Any)).validate_python(value)
        except ValidationError as error:
            fault = error.errors()[0]
            raise ConfigError(f"{key}.{option}: found {value!r}; {fault['msg'][0].lower()}{fault['msg'][1:]}") from None
    if unset := [option for option in missing if option not in bound]:
        raise ConfigError(f"{key}.{unset[0]}: {name} needs it, and it is not set")
    return partial(function, **bound)


def make_options(key: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a dataclass or pydantic model with these values, checked against its annotations.

    Raises ConfigError naming `key` and the option that is unknown, missing or of another type or range.
    """
    known = [f.name for f in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "model_fields", {}))
    try:
        if unknown := [option for option in values if option not in known]:
            raise ConfigError("\n".join(_unknown(f"{key}.{option}", option, known) for option in unknown))
        return TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(key, fault) for fault in error.errors())) from None


def _unknown(where: str, option: str, known: list[str]) -> str:
    close = get_close_matches(option, known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    takes = f"known are {', '.join(known)}" if known else "no options are taken"
    return f"{where}: unknown; {takes}{hint}"


def _fault(key: str, fault: Any) -> str:
    where = ".".join([key, *map(str, fault["loc"])])
    if fault["type"] in ("missing", "missing_argument"):
        return f"{where}: is not set and has no default"
    return f"{where}: found {fault['input']!r}; {fault['msg'][0].lower()}{fault['msg'][1:]}"

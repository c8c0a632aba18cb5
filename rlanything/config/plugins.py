"""Code that a configuration names: `module:attribute` of the user's own, and the options that it takes."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import Field, create_model

from rlanything.config.options import check_options
from rlanything.config.section import Section
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


def bind_options(key: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with its keyword-only parameters set from `values`, each checked against its annotation.

    Raises ConfigError with a line for every option that is unknown, missing or of another type.
    """
    if not callable(function):
        raise ConfigError(f"{key}: found an object of type {type(function).__name__}, expected a function to set")
    hints: dict[str, Any] = get_type_hints(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (hints.get(parameter.name, Any), default)
    model: type[Section] = create_model(str(getattr(function, "__name__", "options")), __base__=Section, **fields)
    return partial(function, **dict(check_options(model, values, key)))


def make_options(key: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a dataclass or Section with these values, checked against its annotations.

    Raises ConfigError with a line for every option that is unknown, missing, or of another type or range.
    """
    if issubclass(kind, Section):
        return check_options(kind, values, key)
    if not dataclasses.is_dataclass(kind):
        raise ConfigError(f"{key}: found {kind.__name__} as the class of options, expected a dataclass")
    hints: dict[str, Any] = get_type_hints(kind)
    members: dict[str, Any] = {}
    for member in dataclasses.fields(kind):
        default: Any = ... if member.default is dataclasses.MISSING else member.default
        if member.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=member.default_factory)
        members[member.name] = (hints[member.name], default)
    model: type[Section] = create_model(kind.__name__, __base__=Section, **members)
    return kind(**dict(check_options(model, values, key)))

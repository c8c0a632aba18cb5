"""Code that a configuration names as `module:attribute`, and the options that it takes: a domain's (dataset.options),
an advantage rule's (algorithm.options)."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_origin, get_type_hints

from pydantic import ValidationError, create_model

from rlanything.config.faults import messages
from rlanything.config.reading import is_text, kind_of
from rlanything.config.section import Section
from rlanything.errors import ConfigError

T = TypeVar("T")
Options = TypeVar("Options", bound=Section)


def load_object(key: str, name: str, shipped: Collection[str]) -> Any:
    """Import the object that `module:attribute` names. The working directory is searched too, as `python -m` does.

    Raises ConfigError naming `key`: the form is another, the module cannot be imported, or it has no such attribute.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        known = f"one of {', '.join(shipped)}, or " if shipped else ""
        raise ConfigError(f"{key}: found {name!r}, expected {known}module:name{_hint(name, shipped)}")
    module = load_module(key, name, module_name)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        hint = _hint(attribute, (n for n in vars(module) if not n.startswith("_")), f"{module_name}:")
        raise ConfigError(f"{key}: found {name!r}, but {module.__file__} defines no {attribute}{hint}") from error


def load_module(key: str, name: str, module_name: str) -> ModuleType:
    """Import a module that is part of a `name`; see `load_object`. Raises ConfigError naming `key`."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(module_name)
    except Exception as error:  # whatever the user's module raises on import
        raise ConfigError(
            f"{key}: found {name!r}, but importing {module_name} fails ({type(error).__name__}: {error}); expected a "
            f"module that Python can import from {here} or PYTHONPATH"
        ) from error


def bind_options(key: str, function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with its keyword-only parameters set from `values`, each checked against its annotation.

    Raises ConfigError with a line for every option that is unknown, missing or of another type.
    """
    if not callable(function):
        raise ConfigError(f"{key}: found an object of type {type(function).__name__}, expected a function to set")
    parameters = inspect.signature(function).parameters.values()
    options = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    return partial(function, **_checked(key, function, options, values))


def make_options(key: str, kind: type[T], values: Mapping[str, Any]) -> T:
    """An instance of a dataclass or Section with these values, checked against its annotations.

    Raises ConfigError with a line for every option that is unknown, missing, or of another type or range.
    """
    if issubclass(kind, Section):
        return _validated(key, kind, values)
    if not dataclasses.is_dataclass(kind):
        raise ConfigError(f"{key}: found {kind.__name__} as the class of options, expected a dataclass")
    return kind(**_checked(key, kind, inspect.signature(kind).parameters.values(), values))


def _validated(key: str, model: type[Options], values: Mapping[str, Any]) -> Options:
    """The options at `key` as a model of them. Raises ConfigError with a line for every fault.

    YAML was read without the model, so an unquoted text such as 12 became a number; it becomes text again here. YAML
    has no tuples, so a list becomes one where the model expects it.
    """
    given = {k: _as_expected(kind_of(model, k), v) for k, v in values.items()}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(messages(error, model, given, {}, key))) from None


def _as_expected(kind: Any, value: Any) -> Any:
    if type(value) is int and is_text(kind):
        return str(value)
    return tuple(value) if isinstance(value, list) and get_origin(kind) is tuple else value


def _checked(
    key: str, target: Callable[..., Any], parameters: Iterable[inspect.Parameter], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of `target` that `values` sets, checked; `target` itself has the defaults of the others."""
    hints = get_type_hints(target)
    fields: dict[str, Any] = {
        parameter.name: (hints.get(parameter.name, Any), ... if parameter.default is parameter.empty else None)
        for parameter in parameters
    }
    model = create_model(str(getattr(target, "__name__", "options")), __base__=Section, **fields)
    options = _validated(key, model, values)
    return {name: getattr(options, name) for name in options.model_fields_set}


def _hint(name: str, known: Iterable[str], module: str = "") -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {module}{close[0]}?" if close else ""

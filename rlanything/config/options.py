"""Options that the configuration itself does not know: a domain's (dataset.options), an advantage rule's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from rlanything.config.faults import messages
from rlanything.config.reading import is_text, kind_of
from rlanything.config.section import Section
from rlanything.errors import ConfigError

Options = TypeVar("Options", bound=Section)


def check_options(model: type[Options], values: Mapping[str, Any], key: str = "dataset.options") -> Options:
    """The options at `key` as a model of them. Raises ConfigError with a line for every fault.

    YAML was read without knowing the model, so that a text such as 12 became a number; it is text again here.
    """
    given = {k: str(v) if type(v) is int and is_text(kind_of(model, k)) else v for k, v in values.items()}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(messages(error, model, given, {}, key))) from None

"""Prompts of a user's own: Jinja templates in a folder (`dataset.prompt=FOLDER`).

`policy.jinja` is the user's message before each turn, `judge.jinja` that before a judgement, `test.jinja` that before a
unit test, `rewrite.jinja` that before a variant of a task. Those that are missing keep the domain's words. A file
named *.raw.jinja is the whole prompt instead, chat template and special tokens included, for a model that was trained
on such texts.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import SandboxedEnvironment

from rlanything.errors import ConfigError
from rlanything.types import RAW, Message, user

VARIABLES = {
    "policy": ("task", "payload", "first", "steps", "observation", "actions"),
    "judge": ("task", "payload", "first", "steps", "number"),
    "test": ("task", "payload"),
    "rewrite": ("task", "payload", "direction", "accuracy", "critic"),
}
"""Each template may use these. A step has `response`, `action`, `observation`, and the `actions` possible before it."""
STYLES = ("full", "compact")


class Template:
    """One prompt of the user's."""

    def __init__(self, path: Path, variables: Sequence[str]) -> None:
        """Raises ConfigError for a file that is no template, or uses other variables."""
        self.path, self.raw = path, path.name.endswith(".raw.jinja")
        # A line that holds a block alone leaves nothing. A raw prompt ends as its file does, mostly in a newline.
        environment = SandboxedEnvironment(
            undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=self.raw
        )
        try:
            source = path.read_text(encoding="utf-8")
            used = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ConfigError(f"dataset.prompt: {path}, line {error.lineno}: {error.message}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"dataset.prompt: {path} cannot be read ({error})") from error
        if unknown := sorted(used - set(variables) - set(environment.globals)):
            raise ConfigError(f"dataset.prompt: {path} uses {', '.join(unknown)}; it may use {', '.join(variables)}")

    def messages(self, **variables: Any) -> list[Message]:
        """The prompt. Raises ConfigError if the template fails on these values."""
        try:
            text = self._template.render(**variables)
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise ConfigError(f"dataset.prompt: {self.path}: {error}") from error
        return [{"role": RAW, "content": text}] if self.raw else [user(text)]


def load_templates(prompt: str) -> dict[str, Template]:
    """The templates of a folder by their names; none if `dataset.prompt` names a style. Raises ConfigError."""
    if prompt in STYLES:
        return {}
    files = sorted(Path(prompt).glob("*.jinja"))
    if not files:
        raise ConfigError(
            f"dataset.prompt: found {prompt!r}, expected full, compact, or a folder with templates: "
            f"{', '.join(f'{name}.jinja' for name in VARIABLES)}, or the same as NAME.raw.jinja"
        )
    found: dict[str, Template] = {}
    for file in files:
        name = file.name.removesuffix(".jinja").removesuffix(".raw")
        if name not in VARIABLES or name in found:
            why = "there are two of that name" if name in found else f"expected one of {', '.join(VARIABLES)}"
            raise ConfigError(f"dataset.prompt: {file}: {why}")
        found[name] = Template(file, VARIABLES[name])
    return found

"""Every key with what it takes, its default and its meaning, from the schema: `--help` and docs/configuration.md."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from rlanything.config.faults import expected
from rlanything.config.reading import is_section
from rlanything.config.section import Section
from rlanything.errors import ConfigError

WIDTH = 80  # columns of the help
TOP = "top level"


def sections(schema: type[Section], options: Mapping[str, type[Section]]) -> dict[str, type[Section]]:
    """All sections of a schema by their titles, with the `options` of each domain. Those with the same keys are one."""
    found = {TOP: schema} if any(keys(schema)) else {}
    for name, info in schema.model_fields.items():
        kind = info.annotation
        if is_section(kind):
            inner = [f.annotation for f in kind.model_fields.values() if is_section(f.annotation)]
            title = ", ".join(f"{name}.{key}" for key in kind.model_fields) if inner else name
            found[title] = inner[0] if inner else kind
        if name == "dataset":
            found |= {f"dataset.options (domain={domain})": model for domain, model in options.items()}
    return found


def keys(section: type[Section]) -> Iterator[tuple[str, str, str, str]]:
    """Name, accepted values, default and meaning of each key, in words. A default is empty if the key must be set."""
    for name, info in section.model_fields.items():
        if not is_section(info.annotation):
            default = "" if info.is_required() else _plain(info.get_default())
            yield name, expected(info), default, _one_line(info.description)


def help_text(found: Mapping[str, type[Section]], only: str = "") -> str:
    """The reference for a terminal, of one section only if it is named. Raises ConfigError if there is no such one."""
    names = list(dict.fromkeys(title.split(".")[0] for title in found if title != TOP))
    if only and only not in names:
        raise ConfigError(f"--help {only}: there is no such section, expected one of {', '.join(names)}")
    lines = []
    for title, section in found.items():
        if only in ("", title.split(".")[0]):
            lines += ["", title, _wrapped(_one_line(section.__doc__), 2)]
            for name, takes, default, meaning in keys(section):
                state = f"default {default}" if default else "required"
                lines += ["", _wrapped(f"{name}: {takes} ({state})", 2), _wrapped(meaning, 6)]
    return "\n".join(lines)


def markdown(found: Mapping[str, type[Section]]) -> str:
    """The reference as a table for each section."""
    blocks = []
    for title, section in found.items():
        rows = ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
        for name, takes, default, meaning in keys(section):
            state = f"`{default}`" if default else "must be set"
            rows.append(f"| `{name}` | {takes.replace('<', '&lt;')} | {state} | {meaning} |")
        blocks.append("\n".join([f"## {title}\n", f"{_one_line(section.__doc__)}\n", *rows, ""]))
    return "\n".join(blocks)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _wrapped(text: str, indent: int) -> str:
    space = " " * indent
    return textwrap.fill(text, WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False)

"""Every key with what it takes, its default and its meaning, from the schema: `--help` and docs/configuration.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlanything.config.faults import expected
from rlanything.config.reading import is_section
from rlanything.config.section import Section
from rlanything.errors import ConfigError

WIDTH = 80  # columns of the help
TOP = "top level"


@dataclass(frozen=True)
class Key:
    """A line of the reference, all in words. A key without a default must be set."""

    name: str
    takes: str
    default: str | None
    meaning: str


@dataclass(frozen=True)
class Part:
    """A section, or several that have the same keys; `title` is their dotted names."""

    title: str
    meaning: str
    keys: list[Key]


def parts(schema: type[Section], options: Mapping[str, type[Section]]) -> list[Part]:
    """All sections of a schema, and the `options` of each domain by its name."""
    top = _part(TOP, schema)
    found = [top] if top.keys else []
    for name, info in schema.model_fields.items():
        kind = info.annotation
        if not is_section(kind):
            continue
        inner = [f.annotation for f in kind.model_fields.values() if is_section(f.annotation)]
        names = [f"{name}.{key}" for key in kind.model_fields] if inner else [name]
        found.append(_part(", ".join(names), inner[0] if inner else kind))
        if name == "dataset":
            found += [_part(f"dataset.options (domain={domain})", model) for domain, model in options.items()]
    return found


def help_text(found: list[Part], section: str = "") -> str:
    """The reference for a terminal, of one section only if it is named. Raises ConfigError if there is no such one."""
    names = list(dict.fromkeys(part.title.split(".")[0] for part in found if part.title != TOP))
    if section and section not in names:
        raise ConfigError(f"--help {section}: there is no such section, expected one of {', '.join(names)}")
    lines = []
    for part in found:
        if section in ("", part.title.split(".")[0]):
            lines += ["", part.title, _wrapped(part.meaning, 2)]
            for key in part.keys:
                default = "required" if key.default is None else f"default {key.default}"
                lines += ["", _wrapped(f"{key.name}: {key.takes} ({default})", 2), _wrapped(key.meaning, 6)]
    return "\n".join(lines)


def markdown(found: list[Part]) -> str:
    """The reference as a table for each section."""
    blocks = []
    for part in found:
        rows = ["| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
        for key in part.keys:
            takes = key.takes.replace("<", "&lt;")
            default = "must be set" if key.default is None else f"`{key.default}`"
            rows.append(f"| `{key.name}` | {takes} | {default} | {key.meaning} |")
        blocks.append("\n".join([f"## {part.title}\n", f"{part.meaning}\n", *rows, ""]))
    return "\n".join(blocks)


def _part(title: str, schema: type[Section]) -> Part:
    keys = []
    for name, info in schema.model_fields.items():
        if not is_section(info.annotation):
            default = None if info.is_required() else _plain(info.get_default())
            keys.append(Key(name, expected(info), default, _one_line(info.description)))
    return Part(title, _one_line(schema.__doc__), keys)


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

"""What `dataset.options` of ALFWorld may hold."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class AlfworldOptions(BaseModel):
    """Options of the ALFWorld domain."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    backend: Literal["simulator", "textworld"] = "simulator"
    """The embedded simulator, or the real package, which is slower."""
    project: str = ""
    """Adapted games are written below <path>/json_2.1.1/<project>; empty for the run's name."""
    show_actions: Literal["all", "here", "none"] = "all"
    """Prompts list all admissible commands by number, those that act on things here, or none."""

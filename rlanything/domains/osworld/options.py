"""The options of OSWorld (`dataset.options`)."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from rlanything.config.section import Section, Share


class OsworldOptions(Section):
    """OSWorld's own keys."""

    level: Literal["easy", "middle", "hard"] = "middle"
    """Difficulty of drawn desktops: the way to the goal from the start, and the notices in between."""
    size: PositiveInt = 2000
    """Drawn desktops of the training split."""
    eval_size: PositiveInt = 256
    """Drawn desktops of each evaluation split."""
    infeasible: Share = 0.1
    """Share of drawn desktops with a task that cannot be done. Only `terminate` with failure solves it."""
    max_screens: PositiveInt = 3
    """Screens that a prompt of `rollout.history: paper` shows."""
    max_instruction: PositiveInt = 300
    """Longest instruction that the rewriter may write [characters]."""

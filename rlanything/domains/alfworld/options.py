"""The options of ALFWorld (`dataset.options`)."""

from typing import Literal

from rlanything.config.section import Section


class AlfworldOptions(Section):
    """ALFWorld's own keys."""

    backend: Literal["simulator", "textworld"] = "simulator"
    """What plays the games: our own simulator, or the real TextWorld package. Both answer the same."""
    project: str = ""
    """Adapted games are written below `<path>/json_2.1.1/<project>`. Empty takes the run's name."""
    show_actions: Literal["all", "here", "none"] = "all"
    """Commands that prompts list: all by number, those that act on what is here, or none."""
    first_number: Literal[0, 1] = 1
    """Number of the first command that is listed."""

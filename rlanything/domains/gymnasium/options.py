"""The options of a Gymnasium environment (`dataset.options`)."""

from typing import Annotated, Any

from pydantic import Field

from rlanything.domains.foreign import SeededOptions


class GymnasiumOptions(SeededOptions):
    """Keys of the domain. A template of observations may also show `picture`, what the render mode "ansi" draws."""

    id: Annotated[str, Field(min_length=1)]
    """Id of the environment. `module:Name-v0` imports the module that registers it."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of `gymnasium.make`. The rewriter changes those that are texts or numbers."""
    actions: list[str] = []
    """Names of a discrete space's actions, in its order. Empty takes what the environment or the library calls them."""

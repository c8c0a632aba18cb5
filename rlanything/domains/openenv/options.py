"""The options of an OpenEnv server (`dataset.options`)."""

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from rlanything.domains.foreign import SeededOptions


class OpenenvOptions(SeededOptions):
    """Keys of the domain."""

    url: Annotated[str, Field(pattern="^https?://")]
    """Address of the server, such as http://127.0.0.1:8000."""
    arguments: dict[str, Any] = {}
    """Each reset is given these besides the seed. The rewriter changes those that are texts or numbers."""
    max_sessions: PositiveInt = 1
    """Episodes that the server plays at once (its `max_concurrent_envs`), of each process that plays episodes."""

"""The options of an environment of verifiers (`dataset.options`)."""

from typing import Any

from pydantic import PositiveInt

from rlanything.domains.foreign import ForeignOptions


class VerifiersOptions(ForeignOptions):
    """Keys of the domain."""

    id: str
    """Name of an installed taskset, such as `textarena` or `owner/name`. Modules of the working directory count."""
    arguments: dict[str, Any] = {}
    """Configuration of the taskset, for every split."""
    splits: dict[str, dict[str, Any]] = {}
    """More configuration for single splits, such as `{eval_in_distribution: {split: test}}`. A split without an entry
    shares the taskset with others: `train` has its first tasks, each evaluation's split has the tasks after those."""
    environment: dict[str, Any] = {}
    """Configuration of the environment, such as limits of its agent: `{agent: {max_turns: 8}}`."""
    python: str = ""
    """Interpreter that has verifiers and the environment; empty takes the one that runs this."""
    num_task: PositiveInt = 512
    """Tasks of each split, or as many as there are."""
    success: str = "return"
    """A task is solved with `return` if its reward, the weighted sum of its rewards, reaches `success_from`, with
    `reward` if that is above 0, and with `done` in any case. Any other word is the name of a reward or a metric, which
    must not be 0."""
    instructions: str = ""
    """The policy is told this before the system prompt of the environment."""

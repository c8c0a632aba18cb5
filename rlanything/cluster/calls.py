"""What becomes of calls of Ray's actors: what they return or raised, a process that died, one that is started anew."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from rlanything.engines.base import EngineError
from rlanything.errors import RunError

ACTOR_LOST = (ActorDiedError, ActorUnavailableError)
WAIT_S = 2.0  # before an actor that restarts is called again


class Limit(NamedTuple):
    """How long, and which configuration key says so."""

    key: str
    seconds: float


def result(references: list[ray.ObjectRef], who: str, limit: Limit | None = None) -> list[Any]:
    """What remote calls returned, in order; the first that raises is raised here as it was raised there, while others
    are still under way, but for one that raised because another process died.

    Raises RunError where a process died, or takes longer than `limit` after another has answered.
    """
    pending = list(references)
    try:
        while pending:
            late = limit if len(pending) < len(references) else None
            done, pending = ray.wait(pending, num_returns=1, timeout=late.seconds if late else None)
            if late and not done:
                raise RunError(
                    f"{who} hangs: others answered more than {late.key}={late.seconds:g} s ago; its log is in the "
                    "run's logs folder; the same command goes on from the last checkpoint"
                )
            ray.get(done)
    except RayTaskError as error:
        if (lost := _lost(pending)) is None:
            raise unwrapped(error) from None
        raise _died(who, lost) from lost
    except ACTOR_LOST as error:
        raise _died(who, error) from error
    return ray.get(references)


def _lost(references: list[ray.ObjectRef]) -> RayActorError | None:
    """Why a process of these calls died, if one did in the last moment."""
    done, _ = ray.wait(references, num_returns=len(references), timeout=WAIT_S) if references else ([], [])
    for reference in done:
        try:
            ray.get(reference)
        except ACTOR_LOST as error:
            return error
        except RayTaskError:  # another of those that the first one's end broke
            continue
    return None


def _died(who: str, error: RayActorError) -> RunError:
    return RunError(
        f"{who} died: {cause(error)}; its log is in the run's logs folder; the same command goes on from the last "
        "checkpoint"
    )


class Patience:
    """With an actor that does not answer, since Ray may be starting it anew: `limit_s` since it last did."""

    def __init__(self, limit_s: float, who: str) -> None:
        self.limit_s, self.who = limit_s, who
        self._until: float | None = None

    def pause_s(self) -> float:
        """How long to wait before it is called again. Raises EngineError when it should have been back."""
        now = time.monotonic()
        self._until = self._until or now + self.limit_s
        if now > self._until:
            raise EngineError(
                f"{self.who} died and was not back within cluster.restart_timeout_s={self.limit_s:g} s: its node may "
                "be gone, which takes another one; the same command goes on from the last checkpoint"
            )
        return WAIT_S

    def answered(self) -> None:
        """It is there."""
        self._until = None


def unwrapped(error: RayTaskError) -> Exception:
    """What a remote call raised, as it was raised there."""
    return error.cause if isinstance(error.cause, Exception) else error


def cause(error: RayActorError) -> str:
    """Why an actor died, in a line: the last one of Ray's many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__

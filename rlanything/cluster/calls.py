"""Results of calls to Ray actors: values, errors, and actors that died, hang or restart."""

import time
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, RayActorError, RayTaskError

from rlanything.engines.base import EngineError
from rlanything.errors import RunError

ACTOR_LOST = (ActorDiedError, ActorUnavailableError)
WAIT_S = 2.0  # between two calls of an actor that restarts


def result(references: list[ray.ObjectRef], who: str, limit_key: str = "", limit_s: float | None = None) -> list[Any]:
    """Return what remote calls returned, in order. `who` names the processes in messages.

    Raises the first error of a call at once (fail-fast), while other calls still run. Raises RunError instead if a
    process died, since its death may have caused the error, or takes more than `limit_s` seconds longer than the one
    that answered before it; `limit_key` is the configuration key of that limit.
    """
    pending = list(references)
    try:
        while pending:
            someone_answered = len(pending) < len(references)
            done, pending = ray.wait(pending, timeout=limit_s if someone_answered else None)
            if not done:
                raise RunError(
                    f"{who} hangs: others answered more than {limit_key}={limit_s:g} s ago; see its log in the run's "
                    "logs folder; the same command goes on from the last checkpoint"
                )
            ray.get(done)
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise _lost(who, error.cause) from error
        if (death := _death(pending)) is None:
            raise unwrapped(error) from None
        raise _died(who, death) from death
    except ObjectLostError as error:
        raise _lost(who, error) from error
    except ACTOR_LOST as error:
        raise _died(who, error) from error
    return ray.get(references)


def _death(references: list[ray.ObjectRef]) -> RayActorError | None:
    """The first death of a process among calls that end within WAIT_S."""
    done, _ = ray.wait(references, num_returns=len(references), timeout=WAIT_S) if references else ([], [])
    for reference in done:
        try:
            ray.get(reference)
        except ACTOR_LOST as error:
            return error
        except RayTaskError:  # an error that the death caused in another process
            continue
    return None


def _lost(who: str, error: ObjectLostError) -> RunError:
    return RunError(
        f"{who} was to read samples that were lost with their node ({type(error).__name__}); the same command goes on "
        "from the last checkpoint"
    )


def _died(who: str, error: RayActorError) -> RunError:
    return RunError(
        f"{who} died: {cause(error)}; see its log in the run's logs folder; the same command goes on from the last "
        "checkpoint"
    )


class Patience:
    """Limits how long to call an actor that Ray may be restarting: `limit_s` seconds since it last answered."""

    def __init__(self, limit_s: float, who: str) -> None:
        self.limit_s, self.who = limit_s, who
        self._until: float | None = None

    def pause_s(self) -> float:
        """Seconds to wait before the next call. Raises EngineError if the limit is over."""
        now = time.monotonic()
        self._until = self._until or now + self.limit_s
        if now > self._until:
            raise EngineError(
                f"{self.who} died and was not back within cluster.restart_timeout_s={self.limit_s:g} s: if its node is "
                "lost, Ray needs another node for it; the same command goes on from the last checkpoint"
            )
        return WAIT_S

    def answered(self) -> None:
        """Start the limit anew."""
        self._until = None


def unwrapped(error: RayTaskError) -> Exception:
    """The exception that a remote call raised, without Ray's wrapper."""
    return error.cause if isinstance(error.cause, Exception) else error


def cause(error: RayActorError) -> str:
    """Why an actor died: the last line of Ray's message."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__

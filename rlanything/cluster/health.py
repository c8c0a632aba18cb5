"""Whether engine replicas answer. One whose engine hangs ends itself; one that as a whole is stopped, or holds Python's
lock for good, can only be seen from outside."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError

PERIOD_S = 5.0  # between two looks

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Watched:
    replica: Any
    name: str
    limit_s: float
    asked: ray.ObjectRef | None = None
    since: float = 0.0  # it was asked
    starts: bool = False  # Ray starts it anew: it answers once its model is loaded


class HealthCheck:
    """Asks replicas whether they are there, from a thread; ends one that does not answer, so that Ray starts it anew.

    `start_s` is how long one that was started anew may take to load its model.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self._watched: list[_Watched] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, replica: Any, name: str, limit_s: float) -> None:
        """From now on; it has answered before. It may take `limit_s` for an answer."""
        self._watched.append(_Watched(replica, name, limit_s))
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Stop asking."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(PERIOD_S):
                self._watched = [watched for watched in self._watched if self._look(watched)]
        except RayError as error:  # the cluster is gone: the run learns that from its own calls
            logger.warning("the health check ended: %s", error)

    def _look(self, watched: _Watched) -> bool:
        """Whether to go on with it."""
        if watched.asked is None:
            watched.asked, watched.since = watched.replica.is_there.remote(), time.monotonic()
        if ray.wait([watched.asked], timeout=0)[0]:
            try:
                watched.starts = not ray.get(watched.asked)
            except ActorUnavailableError:
                watched.starts = True
            except ActorDiedError:  # for good: whoever asks it for something learns that
                return False
            watched.asked = None
        elif time.monotonic() - watched.since > (self._start_s if watched.starts else watched.limit_s):
            logger.warning("%s does not answer: it is ended, to be started anew", watched.name)
            ray.kill(watched.replica, no_restart=False)
            watched.asked, watched.starts = None, True
        return True

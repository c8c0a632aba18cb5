"""Whether engine replicas answer. One whose engine hangs ends itself; one that as a whole is stopped, or holds Python's
lock for good, can only be seen from outside."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.state import actors  # the public API asks the dashboard, which is not there
from ray.exceptions import ActorUnavailableError, RayError

PERIOD_S = 15.0  # between two looks: a thousand replicas cost the driver 2 % of its time

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Watched:
    replica: Any
    name: str
    limit_s: float
    asked: ray.ObjectRef | None = None
    starts: bool = False  # Ray starts it anew: it answers once its model is loaded
    since: float = field(default_factory=time.monotonic)  # it answered last, or `starts` changed


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
        looked = time.monotonic()
        while not self._closing.wait(PERIOD_S):
            before, looked = looked, time.monotonic()
            for watched in list(self._watched):
                if looked - before > 2 * PERIOD_S:  # this process was stopped, as by Ctrl-Z, and heard nobody
                    watched.since = looked
                try:
                    self._look(watched)
                except RayError as error:  # dead for good: whoever asks it for something learns that
                    logger.warning("%s is not watched any more: %s", watched.name, error)
                    self._watched.remove(watched)

    def _look(self, watched: _Watched) -> None:
        """Raises RayError where it is dead for good, or the cluster is gone."""
        now = time.monotonic()
        if watched.asked is None:
            watched.asked = watched.replica.is_there.remote()
        if ray.wait([watched.asked], timeout=0)[0]:
            answer, watched.asked = watched.asked, None
            try:
                ray.get(answer)
                watched.starts, watched.since = False, now
                return
            except ActorUnavailableError:  # it is started anew; or the connection was given up, which says nothing
                pass
        starts = actors(watched.replica._actor_id.hex()).get("State") == "RESTARTING"
        if starts != watched.starts:
            watched.starts, watched.since = starts, now
        if now - watched.since > (self._start_s if starts else watched.limit_s):
            logger.warning("%s does not answer: it is ended, to be started anew", watched.name)
            ray.kill(watched.replica, no_restart=False)
            watched.asked, watched.since = None, now

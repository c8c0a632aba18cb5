"""Health checks of engine replicas from outside.

A replica ends itself if its engine hangs (`processes.watchdog`). A replica whose whole process is stopped, or whose
native code never gives Python's lock back, cannot do that.
"""

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import ray
from ray._private.state import actors  # the public API asks the dashboard, which does not run
from ray.exceptions import ActorUnavailableError, RayError

PERIOD_S = 15.0  # between two checks: a thousand replicas then cost the driver 2 % of its time

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class _Watched:
    replica: Any
    name: str
    limit_s: float
    """Seconds that a running replica may take to answer."""
    ping: ray.ObjectRef | None = None
    """The call that it has not answered yet."""
    restarting: bool = False
    """Ray restarts it, so it answers once its model is loaded."""
    since: float = field(default_factory=time.monotonic)
    """When it last answered, or `restarting` changed."""


class HealthCheck:
    """A thread that pings replicas and kills one that does not answer, so that Ray restarts it."""

    def __init__(self, start_s: float) -> None:
        """A restarted replica may take `start_s` seconds to load its model."""
        self._start_s = start_s
        self._watched: list[_Watched] = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, replica: Any, name: str, limit_s: float) -> None:
        """Check a replica that is up from now on. It may take `limit_s` seconds to answer."""
        self._watched.append(_Watched(replica=replica, name=name, limit_s=limit_s))
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        checked = time.monotonic()
        while not self._closing.wait(PERIOD_S):
            before, checked = checked, time.monotonic()
            for watched in list(self._watched):
                if checked - before > 2 * PERIOD_S:  # this process was stopped, as by Ctrl-Z, and missed the answers
                    watched.since = checked
                try:
                    self._check(watched)
                except RayError as error:  # dead for good: the next caller of the replica raises that
                    logger.warning("%s is not watched any more: %s", watched.name, error)
                    self._watched.remove(watched)

    def _check(self, watched: _Watched) -> None:
        """Ping a replica, or kill it if its limit is over. Raises RayError if it is dead for good."""
        now = time.monotonic()
        if watched.ping is None:
            watched.ping = watched.replica.ping.remote()
        if ray.wait([watched.ping], timeout=0)[0]:
            answer, watched.ping = watched.ping, None
            try:
                ray.get(answer)
                watched.restarting, watched.since = False, now
                return
            except ActorUnavailableError:  # it restarts, or the connection broke, which says nothing about the replica
                pass
        restarting = actors(watched.replica._actor_id.hex()).get("State") == "RESTARTING"
        if restarting != watched.restarting:
            watched.restarting, watched.since = restarting, now
        if now - watched.since > (self._start_s if restarting else watched.limit_s):
            logger.warning("%s does not answer: it is killed and restarted", watched.name)
            ray.kill(watched.replica, no_restart=False)
            watched.ping, watched.since = None, now

"""When a replica is ended that does not answer: by the time since it last did, whatever the asking ends with."""

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from rlanything.cluster import health
from rlanything.cluster.health import HealthCheck


@pytest.fixture
def look(monkeypatch):
    """A look at a replica after so many seconds, of which Ray says that state and that answer; the times it was
    killed at."""
    now, killed, said = [0.0], [], {}

    class Replica:
        class _actor_id:  # noqa: N801 - a handle's own name
            hex = staticmethod(lambda: "id")

        class is_there:  # noqa: N801
            remote = staticmethod(lambda: "asked")

    def get(_):
        if isinstance(said["answer"], Exception):
            raise said["answer"]

    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray, "wait", lambda asked, timeout: (asked if said["answer"] != "none" else [], []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda replica, no_restart: killed.append(now[0]))
    monkeypatch.setattr(health, "actors", lambda _: {"State": said["state"]})
    check = HealthCheck(start_s=100.0)
    watched = health._Watched(Replica, "a replica", 10.0, since=0.0)

    def look(seconds, state, answer):
        now[0] += seconds
        said.update(state=state, answer=answer)
        check._look(watched)
        return killed

    def look_after_standing_still(seconds):
        """As its thread does, which slept so long with the whole process."""

        def wait(_):
            now[0] += seconds
            return next(over)

        over = iter([False, True])
        check._watched = [watched]
        monkeypatch.setattr(check._closing, "wait", wait)
        check._run()
        return killed

    look.after_standing_still = look_after_standing_still
    return look


UNAVAILABLE = ActorUnavailableError("the connection broke", None)


@pytest.mark.parametrize("answer", ["none", UNAVAILABLE], ids=["silence", "a connection that is given up"])
def test_a_replica_that_is_there_and_does_not_answer_is_ended_after_its_limit(look, answer):
    for _ in range(3):
        assert look(4.0, "ALIVE", "yes") == []
    assert look(6.0, "ALIVE", answer) == look(4.0, "ALIVE", answer) == []
    assert look(4.0, "ALIVE", answer) == [26.0]
    assert look(4.0, "ALIVE", answer) == [26.0]  # it is given time before it is ended again


def test_a_replica_that_is_started_anew_may_load_its_model_longer(look):
    for _ in range(9):
        assert look(11.0, "RESTARTING", UNAVAILABLE) == []
    assert look(4.0, "ALIVE", "none") == []  # its limit begins when it is up
    assert look(4.0, "ALIVE", "yes") == []
    assert look(1.0, "RESTARTING", UNAVAILABLE) == look(100.0, "RESTARTING", "none") == []
    assert len(look(1.0, "RESTARTING", "none")) == 1


def test_a_replica_that_is_dead_for_good_is_told(look):
    with pytest.raises(ActorDiedError):
        look(1.0, "DEAD", ActorDiedError())


def test_a_replica_is_not_ended_because_the_one_who_asks_was_stopped(look):
    assert look(4.0, "ALIVE", "none") == []
    assert look.after_standing_still(1000.0) == []
    assert len(look(11.0, "ALIVE", "none")) == 1, "its limit begins anew"

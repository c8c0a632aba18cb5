"""A replica that does not answer is killed once its limit since the last answer is over, however the ping fails."""

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from rlanything.cluster import health
from rlanything.cluster.health import HealthCheck


@pytest.fixture
def look(monkeypatch):
    """`look(seconds, state, answer)` lets seconds pass and checks a replica, which has this state in Ray and gives this
    answer to a ping. It returns the times at which the replica was killed."""
    now, killed, ray_says = [0.0], [], {}

    class Replica:
        class _actor_id:  # noqa: N801 - a handle's own name
            hex = staticmethod(lambda: "id")

        class ping:  # noqa: N801
            remote = staticmethod(lambda: "reference")

    def get(_):
        if isinstance(ray_says["answer"], Exception):
            raise ray_says["answer"]

    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray, "wait", lambda pings, timeout: (pings if ray_says["answer"] != "none" else [], []))
    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "kill", lambda replica, no_restart: killed.append(now[0]))
    monkeypatch.setattr(health, "actors", lambda _: {"State": ray_says["state"]})
    check = HealthCheck(start_s=100.0)
    watched = health._Watched(replica=Replica, name="a replica", limit_s=10.0, since=0.0)

    def look(seconds, state, answer):
        now[0] += seconds
        ray_says.update(state=state, answer=answer)
        check._check(watched)
        return killed

    def look_after_a_stop(seconds):
        """Check as the thread does after the whole process was stopped for so many seconds."""

        def wait(_):
            now[0] += seconds
            return next(over)

        over = iter([False, True])
        check._watched = [watched]
        monkeypatch.setattr(check._closing, "wait", wait)
        check._run()
        return killed

    look.after_a_stop = look_after_a_stop
    return look


UNAVAILABLE = ActorUnavailableError("the connection broke", None)


@pytest.mark.parametrize("answer", ["none", UNAVAILABLE], ids=["silence", "a broken connection"])
def test_a_running_replica_that_does_not_answer_is_killed_after_its_limit(look, answer):
    for _ in range(3):
        assert look(4.0, "ALIVE", "yes") == []
    assert look(6.0, "ALIVE", answer) == look(4.0, "ALIVE", answer) == []
    assert look(4.0, "ALIVE", answer) == [26.0]
    assert look(4.0, "ALIVE", answer) == [26.0]  # its limit begins anew after a kill


def test_a_restarted_replica_has_more_time_to_load_its_model(look):
    for _ in range(9):
        assert look(11.0, "RESTARTING", UNAVAILABLE) == []
    assert look(4.0, "ALIVE", "none") == []  # its limit begins when it is up
    assert look(4.0, "ALIVE", "yes") == []
    assert look(1.0, "RESTARTING", UNAVAILABLE) == look(100.0, "RESTARTING", "none") == []
    assert len(look(1.0, "RESTARTING", "none")) == 1


def test_a_replica_that_is_dead_for_good_raises(look):
    with pytest.raises(ActorDiedError):
        look(1.0, "DEAD", ActorDiedError())


def test_a_replica_is_not_killed_because_the_checking_process_was_stopped(look):
    assert look(4.0, "ALIVE", "none") == []
    assert look.after_a_stop(1000.0) == []
    assert len(look(11.0, "ALIVE", "none")) == 1, "its limit begins anew"

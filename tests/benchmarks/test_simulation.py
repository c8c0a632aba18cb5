"""The cluster simulation against closed forms, a token-by-token simulation, and the routing of the real engines."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from zlib import crc32

import pytest
from simulate_cluster import scaled
from simulation import (
    MODELS,
    Clock,
    Costs,
    Hardware,
    Host,
    Replica,
    Speed,
    Turn,
    Workload,
    draw_episodes,
    simulate,
    update_s,
)

from rlanything.config.schema import Config

FREE = Costs(**dict.fromkeys(vars(Costs()), 0.0))
SPEED = Speed(t0=0.01, t1=0.001, t2=1e-6, prefill_s=1e-4, max_num_seqs=8)


def request(clock, replica, ends, at=0.0, new=10, prompt=100, lengths=(20,)):
    """A process that asks once; its end is noted."""
    yield at
    yield replica, new, prompt, lengths
    ends.append(clock.now)


def ends_of(requests, speed=SPEED):
    clock, ends = Clock(), []
    replica = Replica(clock, speed)
    for options in requests:
        clock.go(request(clock, replica, ends, **options))
    clock.run()
    return ends, replica


def rollout(episodes, num_replica, costs=FREE, speed=SPEED, num_host=1):
    """Seconds and replicas of the rollouts alone: every episode at once, dealt to the hosts in turn."""
    clock = Clock()
    engines = {role: [Replica(clock, speed) for _ in range(num_replica)] for role in ("policy", "reward")}
    for i in range(num_host):
        host = Host(clock, engines, episodes[i::num_host], costs, i)
        for _ in episodes[i::num_host]:
            clock.go(host.play())
    clock.run()
    return clock.now, engines


def step_s(batch, kv):
    return SPEED.t0 + SPEED.t1 * batch + SPEED.t2 * kv


def config_of(**keys):
    config = Config()
    config.experiment.num_device = 1
    for key, value in keys.items():
        section, name = key.split("__")
        setattr(getattr(config, section), name, value)
    return config


def test_one_request_takes_its_prefill_and_its_decode_steps():
    [end], replica = ends_of([{}])
    assert end == pytest.approx(10 * SPEED.prefill_s + sum(step_s(1, 100 + i) for i in range(20)))
    assert replica.busy == pytest.approx(end)


def test_samples_of_a_request_share_the_prefill_and_end_with_the_longest():
    [end], replica = ends_of([{"lengths": (5, 20)}])
    both = sum(step_s(2, 200 + 2 * i) for i in range(5))
    assert end == pytest.approx(10 * SPEED.prefill_s + both + sum(step_s(1, 105 + i) for i in range(15)))
    assert replica.decoded == 25 and replica.kv == 0


def test_a_request_joins_at_the_end_of_the_step_under_way():
    ends, _ = ends_of([{"new": 0, "lengths": (3,)}, {"at": step_s(1, 100) * 1.5, "new": 0, "lengths": (3,)}])
    joined = step_s(1, 100) + step_s(1, 101)
    assert ends[0] == pytest.approx(joined + step_s(2, 202))
    assert ends[1] == pytest.approx(joined + step_s(2, 202) + sum(step_s(1, 101 + i) for i in range(2)))


def test_what_does_not_fit_waits_in_order():
    ends, _ = ends_of([{"new": 0}] * 3, SPEED._replace(max_num_seqs=1))
    assert ends == pytest.approx([ends[0], 2 * ends[0], 3 * ends[0]])


def naive(requests, speed):
    """Ends of requests (at, new, prompt, lengths), one decode step after another."""
    coming, waiting, running, now, ends = deque(sorted(requests)), deque(), [], 0.0, []
    while coming or waiting or running:
        while coming and coming[0][0] <= now:
            waiting.append(coming.popleft())
        prefill = 0.0
        while waiting and len(running) + len(waiting[0][3]) <= speed.max_num_seqs:
            _, new, prompt, lengths = waiting.popleft()
            prefill += new * speed.prefill_s
            left = [len(lengths)]
            running += [[prompt, n, left] for n in lengths]
        if prefill:
            now += prefill
            continue  # who came meanwhile joins before the next step
        if not running:
            now = coming[0][0]
            continue
        now += speed.t0 + speed.t1 * len(running) + speed.t2 * sum(kv for kv, _, _ in running)
        for sequence in running:
            sequence[0] += 1
            sequence[1] -= 1
            if sequence[1] == 0:
                sequence[2][0] -= 1
                if sequence[2][0] == 0:
                    ends.append(now)
        running = [s for s in running if s[1]]
    return ends


@pytest.mark.parametrize("seed", range(5))
def test_spans_of_steps_equal_steps_one_by_one(seed):
    rng = random.Random(seed)
    requests = []
    for _ in range(60):
        lengths = tuple(rng.randint(1, 40) for _ in range(rng.choice([1, 3])))
        requests.append((rng.uniform(0.0, 3.0), rng.randint(1, 50), rng.randint(50, 500), lengths))
    ends, replica = ends_of([dict(zip(("at", "new", "prompt", "lengths"), r, strict=True)) for r in requests])
    assert sorted(ends) == pytest.approx(sorted(naive(requests, SPEED)))
    assert replica.decoded == sum(sum(r[3]) for r in requests)


EPISODE = [Turn(100 + 30 * i, 30, 20, 50 + 10 * i, 10, (15, 10, 12)) for i in range(4)]


def test_a_judge_that_says_nothing_takes_no_time():
    silent = [turn._replace(judge_new=0, judged=(0, 0, 0)) for turn in EPISODE]
    unjudged = [turn._replace(judged=()) for turn in EPISODE]
    assert rollout([silent], 1)[0] == pytest.approx(rollout([unjudged], 1)[0])


def test_equal_episodes_on_a_replica_each_take_as_long_as_one():
    assert rollout([EPISODE] * 6, 6)[0] == pytest.approx(rollout([EPISODE], 1)[0])


def test_hosts_do_not_all_begin_with_the_same_replicas():
    _, engines = rollout([EPISODE] * 16, 16, num_host=16)
    assert sum(r.decoded > 0 for r in engines["policy"]) >= 8


def test_routing_is_that_of_the_replicated_engine():
    """Episodes come and go in random order; both send every request to the same replica."""
    from rlanything.cluster.engines import ReplicatedEngine

    real, clock, rng = ReplicatedEngine("policy", Config(), [None] * 5, None, ""), Clock(), random.Random(0)
    host = Host(clock, {"policy": [None] * 5}, [], FREE, 0)
    under_way, held = [], {}
    for _ in range(500):
        if under_way and rng.random() < 0.45:
            process, i = under_way.pop(rng.randrange(len(under_way)))
            next(process, None)
            real._under_way[i] -= 1
            continue
        session = str(rng.randrange(200))
        i = real._route(session, set())
        real._under_way[i] += 1
        host.rng.randrange = lambda n, name=session: crc32(name.encode()) % n
        process = host._ask("policy", held.setdefault(session, {}), 1, 1, (1,), 0.0)
        next(process)  # its way there
        next(process)
        assert held[session]["policy"] == i
        under_way.append((process, i))


def test_a_host_works_on_one_turn_after_another():
    busy = replace(FREE, ask_s=1.0)
    one = [[EPISODE[0]._replace(judged=())]]
    assert rollout(one * 4, 4, busy)[0] == pytest.approx(rollout(one, 1, FREE)[0] + 4.0)


def test_every_token_that_was_drawn_is_decoded():
    config = scaled(config_of(), 16, True, 0.375)
    load = Workload(turns=4.0, response=20.0, judgement=20.0)
    episodes = draw_episodes(load, config, 64)
    simulate(config, episodes, load, Hardware(), Costs())  # asserts it
    assert draw_episodes(load, config, 64) == episodes


def test_a_lone_accelerator_takes_rollouts_and_then_updates():
    config = config_of(adaptation__enabled=False, cluster__placement="colocated")
    load, hardware = Workload(turns=4.0), Hardware()
    episodes = draw_episodes(load, config, 16)
    step = simulate(config, episodes, load, hardware, FREE)
    sync = sum(4 * 2 * MODELS[role][0] for role in ("policy", "reward")) / hardware.hbm
    packed = {
        "policy": load.policy_share * sum(e[-1].prompt + e[-1].response for e in episodes),
        "reward": load.reward_share * sum(e[-1].judge_prompt + sum(sum(t.judged) for t in e) for e in episodes),
    }
    updates = sum(update_s(role, tokens, 1, config, hardware)[0] for role, tokens in packed.items())
    assert step.seconds(0) == pytest.approx(step.rollout_s + updates + sync)
    assert step.seconds(1) == pytest.approx(max(step.rollout_s, updates) + sync)


def test_ranks_without_a_micro_batch_of_their_own_do_not_help():
    config, still = config_of(), replace(Hardware(), hop_s=0.0, nvlink=1e30, network=1e30)
    micro = config.training.policy.micro_batch_tokens * config.training.policy.num_update
    few, all_of_it = update_s("policy", 8 * micro, 8, config, still), update_s("policy", 8 * micro, 64, config, still)
    assert few[0] == pytest.approx(all_of_it[0]) == pytest.approx(few[1])
    assert update_s("policy", 8 * micro, 4, config, still)[0] == pytest.approx(2 * few[0])

"""The task pool: rotation, the acceptance gate, lineage, and a state that survives a checkpoint."""

import json

import pytest
from builders import group, summaries, trajectory

from rlanything.algorithm.summary import GroupSummary
from rlanything.algorithm.tasks import MAX_UNMEASURED, TaskPool, accepts
from rlanything.types import Direction, Status, Task


def pool(n: int = 4) -> TaskPool:
    return TaskPool.of([Task(id=f"q{i}", payload={}) for i in range(n)], 0.2, 0.8, seed=0)


def rolled(task: Task, solved: int, of: int = 8, status: Status = Status.COMPLETED) -> GroupSummary:
    played = group(*(trajectory(1 if i < solved else -1, [()], status=status) for i in range(of)), task=task)
    return summaries([played])[0]


def variant(p: TaskPool, parent: Task, direction: Direction) -> Task:
    return Task(id=p.next_id(parent), payload={}, root_id=parent.root_id, parent_id=parent.id, direction=direction)


@pytest.mark.parametrize(
    ("direction", "accuracy", "parent", "expected"),
    [
        (Direction.HARDER, 0.5, 0.9, True),
        (Direction.HARDER, 0.9, 0.9, False),  # not harder
        (Direction.HARDER, 0.2, 0.9, False),  # strictly above alpha_low
        (Direction.HARDER, 0.0, 0.9, False),  # perhaps unsolvable
        (Direction.EASIER, 0.5, 0.1, True),
        (Direction.EASIER, 0.1, 0.1, False),  # not easier
        (Direction.EASIER, 0.8, 0.1, False),  # strictly below alpha_high
        (Direction.EASIER, 0.125, 0.0, True),
    ],
)
def test_acceptance_gate_is_strict_on_both_sides(direction, accuracy, parent, expected):
    assert accepts(direction, accuracy, parent, 0.2, 0.8) is expected


def test_every_task_is_drawn_once_before_any_again():
    p = pool(5)
    assert sorted(t.id for t in p.draw(5, 0)) == [f"q{i}" for i in range(5)]
    assert len({t.id for t in p.draw(3, 0) + p.draw(2, 0)}) == 5


def test_no_task_is_drawn_twice_in_one_step():
    p, seen = pool(5), []
    for _ in range(50):
        ids = [t.id for t in p.draw(3, 0)]
        assert len(set(ids)) == 3
        seen += ids
    assert {seen.count(f"q{i}") for i in range(5)} == {30}
    assert len(p.draw(16, 0)) == 5, "all, where there are fewer than asked for"


def test_tasks_outside_the_band_are_rewritten_extremes_first():
    p = pool()
    tasks = p.draw(4, 0)
    groups = [rolled(t, s) for t, s in zip(tasks, (1, 4, 8, 0), strict=True)]
    requests = p.rewrite_requests(groups, 10, 2)
    assert [(r.task.id, r.direction) for r in requests] == [
        (tasks[2].id, Direction.HARDER),
        (tasks[3].id, Direction.EASIER),
        (tasks[0].id, Direction.EASIER),
    ]
    assert len(p.rewrite_requests(groups, 1, 2)) == 1


def test_an_accepted_variant_joins_and_its_original_stays():
    p = pool(2)
    [first, _] = p.draw(2, 0)
    easier = variant(p, first, Direction.EASIER)
    p.propose(easier, 0.0, 1, "an easier one")
    assert easier in p.draw(1, 4)
    assert p.settle([rolled(easier, 4)], 2, 2) == [(easier, True)]
    assert {first.id, easier.id} <= set(p.active) and not p.candidates


def test_an_accepted_variant_is_drawn_next_and_then_once_a_rotation():
    p = pool(5)
    [first] = p.draw(1, 0)
    easier = variant(p, first, Direction.EASIER)
    p.propose(easier, 0.0, 1, "")
    p.settle([rolled(easier, 4)], 1, 2)
    assert p.draw(1, 0) == [easier]
    assert [t.id for t in p.draw(4, 0)].count(easier.id) == 0
    assert {t.id for t in p.draw(6, 0)} == set(p.active)


def accepted(p: TaskPool, parent: Task, solved: int) -> Task:
    made = variant(p, parent, Direction.EASIER)
    p.propose(made, 0.0, 1, "")
    p.settle([rolled(made, solved)], 1, 2)
    return made


def test_variants_with_mixed_outcomes_are_revisited_the_longest_waiting_first():
    p = pool(20)
    made = [accepted(p, p.active[f"q{i}"], solved=4) for i in range(3)]
    p.draw(3, 0)  # all three, as each is drawn next
    assert p.draw(4, 0, 0.5)[:2] == made[:2]
    p.settle([rolled(made[0], 3), rolled(made[1], 8)], 2, 2)  # the second one is solved for good
    assert p.draw(4, 0, 0.3)[0] == made[2], "at most 1.2 tasks"
    broken = rolled(made[2], 4, status=Status.ENV_ERROR)
    p.settle([broken], 3, 2)
    assert p.draw(2, 0, 0.5)[0] == made[0], "one whose episodes broke waits for its turn"
    p.settle([rolled(made[0], 0)], 4, 2)  # it has become too hard
    assert p.mixed == [made[2].id]
    assert len({t.id for t in p.draw(23, 0, 1.0)}) == 23, "all in rotation, none twice"


def test_originals_and_candidates_are_not_revisited():
    p = pool(4)
    [first] = p.draw(1, 0)
    harder = variant(p, first, Direction.HARDER)
    p.propose(harder, 0.3, 1, "")
    p.settle([rolled(first, 4), rolled(harder, 4)], 1, 2)  # 0.5 is not harder than 0.3: dropped
    assert p.draw(2, 0, 1.0)[0].id not in (first.id, harder.id) and not p.mixed
    one = accepted(p, first, solved=4)
    two = variant(p, one, Direction.HARDER)
    p.propose(two, 0.9, 1, "")
    p.settle([rolled(two, 4)], 2, 2)
    assert p.draw(1, 0, 1.0) == [two] and p.mixed == [two.id], "its parent left the pool"


def test_a_variant_of_a_variant_replaces_it():
    p = pool(1)
    [first] = p.draw(1, 0)
    one = variant(p, first, Direction.EASIER)
    p.propose(one, 0.0, 1, "")
    p.settle([rolled(one, 7)], 1, 2)  # 0.875 is not below alpha_high
    assert one.id not in p.active
    two = variant(p, first, Direction.EASIER)
    p.propose(two, 0.0, 1, "")
    p.settle([rolled(two, 6)], 2, 2)
    three = variant(p, two, Direction.HARDER)
    p.propose(three, 0.9, 2, "")
    p.settle([rolled(three, 4)], 3, 2)
    assert set(p.active) == {first.id, three.id}
    assert three.root_id == first.id and three.parent_id == two.id


def test_a_candidate_that_is_not_between_is_dropped_with_the_reason():
    p = pool(1)
    [first] = p.draw(1, 0)
    harder = variant(p, first, Direction.HARDER)
    p.propose(harder, 1.0, 1, "")
    assert p.settle([rolled(harder, 0)], 1, 2) == [(harder, False)]
    event = p.drain_events()[-1]
    assert (event["event"], event["reason"], event["accuracy"]) == ("dropped", "accuracy", 0.0)


def test_a_candidate_whose_group_broke_waits_but_not_for_ever():
    p = pool(1)
    [first] = p.draw(1, 0)
    harder = variant(p, first, Direction.HARDER)
    p.propose(harder, 1.0, 1, "")
    for attempt in range(MAX_UNMEASURED):
        assert harder.id in p.candidates, attempt
        p.settle([rolled(harder, 0, status=Status.ENV_ERROR)], 1, 2)
    assert harder.id not in p.candidates


def test_a_task_with_a_waiting_candidate_is_not_rewritten_again():
    p = pool(1)
    [first] = p.draw(1, 0)
    p.propose(variant(p, first, Direction.EASIER), 0.0, 1, "")
    assert p.rewrite_requests([rolled(first, 0)], 10, 2) == []


def test_state_survives_json_and_goes_on_alike():
    p = pool(6)
    p.draw(4, 0)
    p.propose(variant(p, p.active["q1"], Direction.EASIER), 0.0, 1, "")
    accepted(p, p.active["q2"], solved=4)
    p.drain_events()
    copy = pool(6)
    copy.load_state_dict(json.loads(json.dumps(p.state_dict())))
    assert [t.id for t in copy.draw(6, 4, 0.5)] == [t.id for t in p.draw(6, 4, 0.5)]
    assert copy.state_dict() == p.state_dict()


def test_what_cannot_be_played_leaves_the_pool():
    p = pool(3)
    kept, gone = variant(p, p.active["q0"], Direction.EASIER), variant(p, p.active["q1"], Direction.EASIER)
    for made in (kept, gone):
        p.propose(made, 0.0, 1, "")
    p.draw(2, 0)
    p.leave_out(lambda task: "no disk" if task.root_id == "q1" else "")
    assert [t.id for t in p.tasks()] == ["q0", "q2", kept.id]
    assert {t.id for _ in range(3) for t in p.draw(2, 4)} == {"q0", "q2", kept.id}
    with pytest.raises(ValueError, match="no task can be played"):
        p.leave_out(lambda task: "no disk")


def test_a_pool_without_tasks_or_with_an_id_twice_is_refused():
    with pytest.raises(ValueError, match="holds no task"):
        TaskPool.of([], 0.2, 0.8, 0)
    with pytest.raises(ValueError, match="share an id"):
        TaskPool.of([Task(id="a", payload={}), Task(id="a", payload={})], 0.2, 0.8, 0)


def test_events_are_json_even_where_an_accuracy_is_not_a_number():
    p = pool(1)
    p.settle([rolled(p.active["q0"], 0, status=Status.ENV_ERROR)], 1, 2)
    assert json.loads(json.dumps(p.drain_events(), allow_nan=False))[0]["accuracy"] is None

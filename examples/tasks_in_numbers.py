"""Tasks outside the accuracy band, their variants, and what becomes of them; docs/concepts.md shows it."""

# [tasks]
from rlanything.algorithm.summary import GroupSummary
from rlanything.algorithm.tasks import TaskPool
from rlanything.types import Task


def played(task: Task, num_solved: int) -> GroupSummary:
    return GroupSummary(task=task, num_valid=8, num_solved=num_solved, num_broken=0)


originals = [Task(id=name, payload={}) for name in ("mug", "lamp", "two mugs", "book")]
pool = TaskPool.of(originals, alpha_low=0.2, alpha_high=0.8, seed=0)
groups = [played(task, num_solved) for task, num_solved in zip(originals, (8, 1, 0, 5), strict=True)]
requests = pool.rewrite_requests(groups, limit=4, min_group=2)
variants = []
for request in requests:  # the rewriter would write a payload
    names = {"id": pool.next_id(request.task), "parent_id": request.task.id, "direction": request.direction}
    variants.append(Task(payload={}, **names))
    pool.propose(variants[-1], request.group.accuracy, step=1, description="")
solved = {"mug": 5, "lamp": 3, "two mugs": 7}
later = [played(variant, solved[variant.parent_id]) for variant in variants]
verdicts = pool.settle(later, step=2, min_group=2)
# [/tasks]

for request in requests:
    print(
        f"{request.task.id}: accuracy {request.group.accuracy:.3f}, a variant that is {request.direction} is asked for"
    )
for group, (variant, accepted) in zip(later, verdicts, strict=True):
    print(f"{variant.id}: accuracy {group.accuracy:.3f}, {'accepted' if accepted else 'dropped'}")

"""The two feedbacks of the loop on two episodes of one task, in numbers: docs/concepts.md."""

# [feedback]
from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.consistency import assign_consistency
from rlanything.config.schema import AlgorithmConfig, RewardConfig
from rlanything.types import Group, Judgement, Prompt, Score, Task, Trajectory, Turn


def episode(index: int, success: bool) -> Trajectory:
    turns = [Turn(prompt=Prompt(ids=[1]), response_ids=[2], logprobs=[0.0], text="", action="", observation="")]
    trajectory = Trajectory(task_id="put a mug on the desk", index=index, turns=turns)
    trajectory.score = Score(success=success)
    return trajectory


def judgement(index: int, score: int) -> Judgement:
    return Judgement(prompt=Prompt(ids=[3]), response_ids=[4], logprobs=[0.0], text="", scores={(index, 0): score})


task = Task(id="put a mug on the desk", payload={})
solved, failed = episode(0, success=True), episode(1, success=False)
votes = [judgement(0, 1), judgement(0, 1), judgement(0, -1), judgement(1, 1), judgement(1, -1), judgement(1, -1)]
group = Group(task=task, trajectories=[solved, failed], judgements=votes)
assign_advantages([group], AlgorithmConfig(advantage="step_index"))
assign_consistency([group], RewardConfig(consistency="feedback", group="task"))
# [/feedback]

for name, trajectory in (("solved", solved), ("failed", failed)):
    [turn] = trajectory.turns
    print(f"{name}: signal {turn.signal:+.2f}, feedback {turn.reward:+.2f}, advantage {turn.advantage:+.2f}")
for vote in votes:
    [((index, _), score)] = vote.scores.items()
    print(f"vote {score:+d} on episode {index}: reward {vote.reward:+.2f}, advantage {vote.advantage:+.2f}")

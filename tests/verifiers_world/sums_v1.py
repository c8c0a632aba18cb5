"""A taskset of verifiers with one turn a task."""

import verifiers.v1 as vf

__all__ = ["SumTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumConfig(vf.TasksetConfig):
    top: int = 9


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, task, trace) -> float:
        return float((trace.last_reply or "").strip() == task.answer)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply or ""))


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        for a in range(1, self.config.top + 1):
            for b in (2, 3):
                data = SumData(prompt=f"{a} + {b} = ?", system_prompt="Answer with a number.", answer=str(a + b))
                yield SumTask(data, self.config.task)

"""A taskset of verifiers with what real ones have and tests forget."""

import subprocess
import sys

import verifiers.v1 as vf

__all__ = ["OddEnv", "OddTaskset"]


class OddTaskConfig(vf.TaskConfig):
    bonus: float = 0.0


class OddConfig(vf.TasksetConfig):
    task: OddTaskConfig = OddTaskConfig()
    licence: bool = True


class OddTask(vf.Task[vf.TaskData, vf.State, OddTaskConfig]):
    @vf.reward
    async def executed(self, task, trace) -> float:
        code = "import sys; sys.exit(bool(sys.stdin.read()))"  # as a program that waits for input does
        return self.config.bonus + float(subprocess.run([sys.executable, "-c", code]).returncode == 0)


class OddTaskset(vf.Taskset[OddTask, OddConfig]):
    def load(self):
        for i in range(8):
            yield OddTask(vf.TaskData(prompt=f"{i}?", system_prompt="Be brief.\n"), self.config.task)


class OddEnvConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class OddEnv(vf.Env[OddEnvConfig]):
    async def start(self):
        if not self.taskset.config.licence:
            raise RuntimeError("no licence for the game")

    async def run(self, task, agents):
        await agents.agent.run(task)

"""A taskset of verifiers with an environment of its own, which plays the user for several turns."""

import os

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    pass


class GuessTaskset(vf.Taskset[GuessTask]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            number += 1
            yield GuessTask(GuessData(prompt="Guess a number from 1 to 8.", number=1 + number % 8), self.config.task)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        print("an environment may print")
        won = 0.0
        async with agents.player.interaction(task) as talk:
            segment = await talk.turn()
            for _ in range(4):
                if segment.terminated:
                    break
                said = segment.last_reply
                if said == "break":
                    raise ValueError("broken on purpose")
                if said == "die":
                    os._exit(3)
                if said == str(task.data.number):
                    won = 1.0
                    break
                higher = said.isdigit() and int(said) < task.data.number
                segment = await talk.turn("higher" if higher else "lower")
        talk.trace.record_reward("won", won)

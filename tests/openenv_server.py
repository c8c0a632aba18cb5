"""An OpenEnv server for tests: `PYTHON openenv_server.py PORT`, by an interpreter that has the package.

Four sessions at once. A number from 1 to 8 is to be guessed; the seed draws it.
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Environment, create_fastapi_app
from openenv.core.env_server.types import Action, Observation, State


class GuessAction(Action):
    guess: int


class GuessObservation(Observation):
    hint: str = ""
    tries: int = 0


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, top=8, **kwargs):
        self.number, self._state = random.Random(seed).randint(1, top), State(episode_id=episode_id, step_count=0)
        return GuessObservation(hint=f"Guess a number from 1 to {top}.")

    def step(self, action, timeout_s=None, **kwargs):
        self._state.step_count += 1
        if action.guess < 0:
            raise ValueError("negative")
        right = action.guess == self.number
        hint = "right" if right else "higher" if action.guess < self.number else "lower"
        return GuessObservation(hint=hint, tries=self._state.step_count, done=right, reward=1.0 if right else 0.0)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Guess, GuessAction, GuessObservation, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")

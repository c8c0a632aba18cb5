"""A domain that shows pictures: say in which column the square stands. For tests of the loop with images."""

import io
import random

from PIL import Image, ImageDraw

from rlanything.domains.base import Domain, Env, Observation, ParsedAction
from rlanything.types import Task

COLUMNS = 4


def picture(column: int) -> bytes:
    """64 x 32 pixels, a square in one of the columns, as PNG."""
    image, file = Image.new("RGB", (64, 32), "white"), io.BytesIO()
    ImageDraw.Draw(image).rectangle((16 * column, 8, 16 * column + 15, 23), fill="red")
    image.save(file, "PNG")
    return file.getvalue()


class Columns(Env):
    def __init__(self, domain: Domain, task: Task) -> None:
        self.domain, self.draw = domain, random.Random(task.payload["seed"])
        self.left = 2

    def look(self, text: str, **more: bool) -> Observation:
        self.column = self.draw.randrange(COLUMNS)
        return Observation(text, images=(self.domain.images.put(picture(self.column)),), **more)

    async def reset(self) -> Observation:
        return self.look("Where?")

    async def step(self, action: str | None) -> Observation:
        self.left -= 1
        right = action == str(self.column)
        return self.look("right" if right else "wrong", done=not self.left, success=right)


class Pictures(Domain):
    def tasks(self, split: str) -> list[Task]:
        return [Task(id=f"{split}/{i}", payload={"seed": f"{split}{i}"}) for i in range(8)]

    def make_env(self, task: Task) -> Env:
        return Columns(self, task)

    def parse_action(self, text: str, observation: Observation) -> ParsedAction:
        found = [c for c in text if c.isdigit()]
        return ParsedAction(found[0]) if found else ParsedAction(None, "no digit")

"""One episode of an environment of verifiers."""

from collections.abc import Sequence
from typing import Any

from rlanything.domains.base import Env, Observation
from rlanything.domains.foreign import is_solved
from rlanything.domains.verifiers.options import VerifiersOptions
from rlanything.domains.verifiers.service import Service, ServiceError
from rlanything.types import Score, Task


class VerifiersEnv(Env):
    """The environment's requests for responses are the turns."""

    def __init__(self, options: VerifiersOptions, service: Service, task: Task) -> None:
        self.options, self.service, self.task = options, service, task
        self.seen: list[dict[str, Any]] = []
        self.episode: Any = None

    async def reset(self) -> Observation:
        self.episode = self.service.play(self.task.payload)
        return await self._next()

    async def step(self, action: str | None) -> Observation:
        said = action or ""
        self.seen.append({"role": "assistant", "content": said.strip()})
        self.episode.say(said)
        return await self._next()

    async def score(self, last: Observation) -> Score:
        return Score(success=last.success, reward=last.reward if last.done else 0.0)

    async def close(self) -> None:
        if self.episode:
            self.episode.close()

    async def _next(self) -> Observation:
        heard = await self.episode.next()
        if "messages" in heard:
            return Observation(self._new(heard["messages"]))
        reward: float = heard["reward"]
        names = ("reward", "return", "done", *heard["told"])
        if (key := self.options.success) not in names:
            raise ServiceError(f"dataset.options.success: found {key}, expected one of {', '.join(names)}")
        success = is_solved(self.options, True, reward, reward, heard["told"])
        told = ", ".join(f"{name} {value:g}" for name, value in heard["told"].items())
        return Observation(f"The end: {told or 'no reward'}.", done=True, success=success, reward=reward)

    def _new(self, messages: list[dict[str, Any]]) -> str:
        """The text of the messages that the policy has not seen. Raises ServiceError if earlier ones have changed."""
        earlier = [_bare(message) for message in messages[: len(self.seen)]]
        if len(messages) <= len(self.seen) or earlier != self.seen:
            raise ServiceError("the environment changes earlier messages, which a policy's trajectory cannot follow")
        new = [_bare(message) for message in messages[len(self.seen) :]]
        system = (self.task.payload.get("system_prompt") or "").strip()
        first, self.seen = not self.seen, [*self.seen, *new]
        if first and new[0]["role"] == "system" and new[0]["content"] == system:
            new = new[1:]  # the domain's opening has it
        return told(new)


def told(messages: Sequence[dict[str, Any]]) -> str:
    """Messages as one text; roles are named if another than the user speaks."""
    if all(message["role"] == "user" for message in messages):
        return "\n\n".join(message["content"] for message in messages)
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """Role and text. Raises ServiceError for what is no text."""
    content = message.get("content") or ""
    if isinstance(content, list):
        if any(part.get("type") != "text" for part in content):
            raise ServiceError("the environment shows images, which the domain verifiers cannot")
        content = "".join(part["text"] for part in content)
    return {"role": message["role"], "content": content.strip()}

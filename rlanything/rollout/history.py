"""The prompts that the policy reads before the turns of an episode."""

from collections.abc import Sequence

from rlanything.domains.base import Domain, Observation, Step
from rlanything.engines.chat import Chat
from rlanything.types import Prompt, Task, Turn


class History:
    """Renders the prompts of one episode.

    With `rollout.history: append_only` a prompt is the last prompt, the sampled response and the environment's answer,
    so a whole episode trains in one forward pass. With `paper` every prompt is rendered anew, as in the paper's code.
    """

    def __init__(self, chat: Chat, domain: Domain, task: Task, first: Observation, mode: str) -> None:
        self.chat, self.domain, self.task, self.first, self.mode = chat, domain, task, first, mode
        self.tools = domain.tools()

    def prompt(self, turns: Sequence[Turn], steps: Sequence[Step]) -> Prompt:
        """The prompt after these turns; `steps` are the same turns as the domain sees them."""
        if not steps:
            return self.chat.prompt(self.domain.asked(self.task, self.first, ()), self.tools)
        if self.mode == "paper":
            return self.chat.prompt(self.domain.asked(self.task, self.first, steps), self.tools)
        last, answer = turns[-1].prompt, self.chat.follow_up(self.domain.answer(steps[-1].observation), self.tools)
        return last.extended(turns[-1].response_ids, answer)

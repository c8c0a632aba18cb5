"""A harness of verifiers that only talks: it executes nothing and starts no process.

verifiers finds a harness by the name of a module, so this one lies in a folder that the service puts on its path.
"""

from __future__ import annotations

from typing import Any

import httpx
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ChatHarness"]


class ChatConfig(vf.HarnessConfig):
    """No keys of its own."""


class ChatHarness(vf.Harness[ChatConfig]):
    """Asks the model once for each message of the user."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        **_: Any,
    ) -> ProgramResult:
        """Ask for one response. verifiers calls again with the conversation so far if the user goes on."""
        if mcp_urls:
            return ProgramResult(1, "", "the environment has tools, which the domain verifiers does not offer a policy")
        system, prompt = self.resolve_prompt(data)
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [{"role": message.role, "content": message.content} for message in prompt or []]
        async with httpx.AsyncClient(timeout=None) as http:
            answer = await http.post(
                endpoint.rstrip("/") + "/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        return ProgramResult(int(answer.status_code >= 400), "", answer.text if answer.status_code >= 400 else "")

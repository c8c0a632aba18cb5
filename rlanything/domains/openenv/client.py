"""OpenEnv's protocol: JSON schemas over HTTP, and one environment for each WebSocket.

Source: github.com/meta-pytorch/OpenEnv, core/env_server/http_server.py (release 0.3.0).
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from types import TracebackType
from typing import Any

from rlanything.errors import TaskError

INSTALL = 'dataset.domain=openenv needs the package aiohttp: pip install -e ".[openenv]"'
WAIT_S = 10.0  # for the server to answer a question about itself
MAX_BYTES = 100 << 20  # of a message, as OpenEnv's own client has it
OF_THE_ACTION = ("VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON")  # the session goes on after these


class SessionError(RuntimeError):
    """The server broke an episode, or has no room for it."""


class RefusedAction(ValueError):
    """The environment cannot take an action. The episode goes on."""


def schemas(url: str) -> dict[str, Any]:
    """The JSON schemas of the server's `action`, `observation` and `state`. Raises TaskError if no OpenEnv answers."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=WAIT_S) as answer:
            found = json.load(answer)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise TaskError(
            f"dataset.options.url={url}: no OpenEnv server answers there ({error}); start it, or correct the address"
        ) from error
    for name in ("action", "observation"):
        if not isinstance(found, dict) or not isinstance(found.get(name), dict) or "properties" not in found[name]:
            raise TaskError(
                f"dataset.options.url={url}: what answers there is no OpenEnv server (/schema has no properties of the "
                f"{name})"
            )
    return found


def client_library() -> Any:
    """The package aiohttp. Raises TaskError if it is missing."""
    try:
        import aiohttp
    except ImportError as error:
        raise TaskError(INSTALL) from error
    return aiohttp


class Session:
    """A WebSocket of the server, which is one environment. Raises SessionError if the server cannot go on."""

    def __init__(self, url: str) -> None:
        self.aiohttp, self.url = client_library(), f"ws{url.removeprefix('http').rstrip('/')}/ws"
        self.http: Any = None
        self.socket: Any = None

    async def __aenter__(self) -> Session:
        self.http = self.aiohttp.ClientSession()
        try:
            self.socket = await self.http.ws_connect(self.url, max_msg_size=MAX_BYTES)
        except BaseException as error:  # a cancellation too
            await self.http.close()
            if isinstance(error, self.aiohttp.ClientError):
                raise SessionError(f"{self.url}: {error}") from error
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            await self.socket.close()
        finally:
            await self.http.close()

    async def ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a message, `reset` or `step`; returns the answer's data: observation, reward, done.

        Raises RefusedAction if the environment does not take the action.
        """
        try:
            await self.socket.send_json({"type": kind, "data": data})
            answer = await self.socket.receive()
        except (self.aiohttp.ClientError, ConnectionError) as error:
            raise SessionError(f"{self.url}: {error}") from error
        if answer.type is not self.aiohttp.WSMsgType.TEXT:
            raise SessionError(
                f"{self.url}: the server ended the session ({answer.data}); does it play more than one at once? see "
                "dataset.options.max_sessions"
            )
        message = json.loads(answer.data)
        found: dict[str, Any] = message["data"]
        if message["type"] == "error":
            details = f": {json.dumps(found['errors'], ensure_ascii=False)}" if found.get("errors") else ""
            said, code = f"{found.get('message')}{details}", found.get("code")
            if kind == "step" and code in OF_THE_ACTION:
                raise RefusedAction(said)
            raise SessionError(f"{self.url}: {code}: {said}")
        return found

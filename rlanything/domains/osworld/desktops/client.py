"""Talks to the server inside a desktop: ours over a unix socket, any guest of OSWorld over TCP."""

import asyncio
import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.execution import requests

ANSWER_S = 30.0  # time that the server has for an answer, besides what a command may take
TYPING_S = 60.0  # time that typing a text may take, and
BINDING_S = 0.1  # more for each of its characters: those without a key are bound to spare keys in batches
LARGEST_BYTES = 16 * 2**20  # of a file that is read: it is the agent's
POLL_S = 0.1  # between two looks at a screen that may still change
LOCKED = "Permission denied"
TYPEWRITER = Path(__file__).parent / "guest" / "typewriter.py"
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; pyautogui.PAUSE = 0; "


class DesktopFault(RuntimeError):
    """A desktop broke, or its set-up or evaluation did. A retry on a fresh desktop may mend it."""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A command that ended."""

    returncode: int
    output: str
    error: str


class Guest:
    """A connection to one desktop. Every call raises DesktopFault if the desktop does not answer as it should."""

    def __init__(self, url: str, socket: Path | None = None) -> None:
        """`url` is the server's address; with `socket`, the unix socket that it listens on."""
        self.url, self.client = url, connection(socket, ANSWER_S)
        self.name = str(socket or url)
        self.offers: dict[str, bool] = {}
        self.settled_s = 0.0  # how long the last screenshot waited for the screen to stand still
        self.screen = (0, 0)

    async def connect(self) -> None:
        """Ask what the server offers, and how large the screen is."""
        try:
            answer = await self.client.get(f"{self.url}/capabilities")
        except httpx.HTTPError as error:
            raise DesktopFault(f"{self.name} does not answer: {error!r}") from error
        self.offers = _offers(answer)
        with Image.open(io.BytesIO(await self.screenshot())) as image:
            self.screen = image.size

    async def check_shown(self) -> None:
        """Raises DesktopFault unless the screen shows something: a machine that starts is black for a while."""
        with Image.open(io.BytesIO(await self.screenshot())) as image:
            if image.convert("L").getextrema()[1] == 0:
                raise DesktopFault(f"{self.name} shows a black screen")

    async def close(self) -> None:
        """Close the connection."""
        await self.client.aclose()

    async def screenshot(self, still_s: float = 0.0) -> bytes:
        """The screen as a PNG: the first of two equal ones that follow each other, or the last after `still_s`."""
        if self.offers.get("still"):
            answer = await self._answered("GET", f"/screenshot?still={still_s}", timeout_s=ANSWER_S + still_s)
            self.settled_s = float(answer.headers["X-Settled-Seconds"])
            return _picture(answer.content)
        started, shown = time.monotonic(), _picture(await self._get("/screenshot"))
        while (settled_s := time.monotonic() - started) < still_s:
            await asyncio.sleep(POLL_S)
            before, shown = shown, _picture(await self._get("/screenshot"))
            if before == shown:
                break
        self.settled_s = settled_s
        return shown

    async def perform(self, action: Action) -> None:
        """Perform an action."""
        for request in requests(action, self.screen):
            typing_s = TYPING_S + BINDING_S * len(request.text)
            if self.offers.get("input") and (request.code or request.text):
                path, body = ("/input", {"code": request.code}) if request.code else ("/type", {"text": request.text})
                await self._send(path, body, typing_s)
                continue
            if request.code:
                done = await self.execute(["python", "-c", PREFIX + request.code])
            elif request.text:
                done = await self.execute(["python", "-c", TYPEWRITER.read_text(), request.text], timeout_s=typing_s)
            else:
                await asyncio.sleep(request.pause_s)
                continue
            if done.returncode:
                raise DesktopFault(f"{self.name} could not perform {action.to_json()}: {done.error.strip()[-300:]}")

    async def execute(self, command: list[str] | str, shell: bool = False, timeout_s: float = 120.0) -> Done:
        """Run a command to its end."""
        body = {"command": command, "shell": shell, "timeout": timeout_s}
        answer = await self._post("/execute", body, ANSWER_S + timeout_s)
        if "returncode" not in answer:
            raise DesktopFault(f"{self.name}: {command}: {answer.get('message', answer)}")
        return Done(returncode=answer["returncode"], output=answer.get("output", ""), error=answer.get("error", ""))

    async def launch(self, command: list[str] | str, shell: bool = False) -> None:
        """Start a program that goes on by itself."""
        await self._send("/setup/launch", {"command": command, "shell": shell})

    async def open(self, path: str) -> None:
        """Open a file with its application; returns when its window is there."""
        await self._send("/setup/open_file", {"path": path}, ANSWER_S * 4)

    async def window(self, what: str, name: str, strict: bool = False, by_class: bool = False) -> None:
        """`activate` or `close` a window by a part of its title."""
        await self._send(f"/setup/{what}_window", {"window_name": name, "strict": strict, "by_class": by_class})

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file."""
        form = {"file_path": path}
        await self._answered("POST", "/setup/upload", data=form, files={"file_data": ("file", content)})

    async def download(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file, if the agent locked it, or if it has more than
        LARGEST_BYTES."""
        content = b""
        try:
            async with self.client.stream("POST", f"{self.url}/file", data={"file_path": path}) as answer:
                if answer.status_code not in (200, 404):
                    told = (await answer.aread()).decode(errors="replace")
                    if LOCKED in told:  # OSWorld's own server says so
                        return None
                    raise DesktopFault(f"{self.name}/file answered {answer.status_code}: {told.strip()[-300:]}")
                async for block in answer.aiter_bytes():
                    content += block
                    if answer.status_code == 404 or len(content) > LARGEST_BYTES:
                        return None
        except httpx.HTTPError as error:
            raise DesktopFault(f"{self.name}/file: {error!r}") from error
        return content if answer.status_code == 200 else None

    async def _get(self, path: str, timeout_s: float | None = None) -> bytes:
        return (await self._answered("GET", path, timeout_s=timeout_s)).content

    async def _send(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> None:
        await self._answered("POST", path, json=body, timeout_s=timeout_s)

    async def _post(self, path: str, body: dict[str, Any], timeout_s: float | None = None) -> dict[str, Any]:
        answer = await self._answered("POST", path, json=body, timeout_s=timeout_s)
        try:
            found = answer.json()
        except ValueError as error:
            raise DesktopFault(f"{self.name}{path} answered no JSON: {answer.text[:200]}") from error
        return found if isinstance(found, dict) else {}

    async def _answered(self, method: str, path: str, *, timeout_s: float | None = None, **sent: Any) -> httpx.Response:
        try:
            answer = await self.client.request(method, self.url + path, timeout=timeout_s or ANSWER_S, **sent)
        except httpx.HTTPError as error:
            raise DesktopFault(f"{self.name}{path}: {error!r}") from error
        if answer.status_code != 200:
            raise DesktopFault(f"{self.name}{path} answered {answer.status_code}: {answer.text.strip()[-300:]}")
        return answer


def connection(socket: Path | None, timeout: float) -> httpx.AsyncClient:
    """A connection over a unix socket, or over TCP. Certificates are not loaded: desktops speak plain HTTP."""
    transport = httpx.AsyncHTTPTransport(uds=str(socket) if socket else None, verify=False)
    return httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)


def _offers(answer: httpx.Response) -> dict[str, Any]:
    """Read the answer of /capabilities; OSWorld's own server has no such route."""
    try:
        found = answer.json() if answer.status_code == 200 else {}
    except ValueError:  # a page of a proxy, for example
        return {}
    return found if isinstance(found, dict) else {}


def _picture(content: bytes) -> bytes:
    """The content, if it is a picture."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.verify()
    except (OSError, ValueError, SyntaxError) as error:
        raise DesktopFault(f"the screenshot is no picture ({error})") from error
    return content

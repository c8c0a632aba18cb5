"""The process that plays episodes of an environment of verifiers, seen from this side."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rlanything.domains.verifiers.options import VerifiersOptions
from rlanything.errors import TaskError

PROGRAM = Path(__file__).parent / "guest/service.py"
START_S = 120.0  # for imports and the environment's own set-up
END_S = 5.0  # after its stream is closed
LOOK_S = 1.0  # between two looks at whether the process lives
ERROR_CHARS = 2000
INSTALL = (
    "give verifiers an environment of its own, because its versions of openai and mcp differ from vLLM's: python3 -m "
    "venv cache/verifiers && cache/verifiers/bin/pip install verifiers, and dataset.options.python="
    "cache/verifiers/bin/python"
)
Json = dict[str, Any]


class ServiceError(RuntimeError):
    """The environment broke an episode, or its process ended."""


class Service:
    """One process, shared by all episodes of this one. Thread-safe.

    Raises TaskError if the interpreter, verifiers or the environment is missing, or does not take its configuration.
    """

    def __init__(self, options: VerifiersOptions) -> None:
        self._id, self._names = options.id, itertools.count()
        self._lock = threading.Lock()
        self._ended = ""  # why, once it has
        self._hear: dict[str, Callable[[Json], None]] = {}
        self._outgoing: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors = tempfile.TemporaryFile()
        python = str(Path(options.python).expanduser()) if options.python else sys.executable
        given = options.model_dump(include={"id", "arguments", "environment"})
        try:
            self._process = subprocess.Popen(
                [python, str(PROGRAM), json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            raise TaskError(f"dataset.options.python={python}: {error.strerror}; {INSTALL}") from error
        started: queue.Queue[Json] = queue.Queue()
        self._hear[""] = started.put
        for work in (self._read, self._send):
            threading.Thread(target=work, daemon=True).start()
        try:
            first = started.get(timeout=START_S)
        except queue.Empty:
            first = {"error": f"it did not start within {START_S:.0f} s"}
        if "ready" not in first:
            self.close()
            remedy = f"; {INSTALL}" if "No module named 'verifiers'" in first["error"] else ""
            raise TaskError(f"dataset.options.id={self._id}: {first['error']}{remedy}")

    @property
    def ended(self) -> bool:
        """The process is no more."""
        return bool(self._ended) or self._process.poll() is not None

    def tasks(self, arguments: Json, start: int, num: int) -> list[Json]:
        """The data of the taskset's tasks from number `start` on, `num` at most."""
        found: queue.Queue[Json] = queue.Queue()
        with self._heard(found.put) as name:
            self._write({"tasks": name, "config": arguments, "start": start, "num": num})
            answer: Json | None = None
            while answer is None:
                try:
                    answer = found.get(timeout=LOOK_S)
                except queue.Empty:
                    if self.ended:
                        answer = {"error": self._ended or "its process has ended"}
        if "found" not in answer:
            raise TaskError(f"dataset.options.id={self._id}: {answer['error']}")
        tasks: list[Json] = answer["found"]
        return tasks

    def play(self, task: Json) -> Episode:
        """Start an episode, in the running event loop."""
        return Episode(self, task)

    def close(self) -> None:
        """End the process."""
        self._outgoing.put(None)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    @contextlib.contextmanager
    def _heard(self, hear: Callable[[Json], None]) -> Iterator[str]:
        name = str(next(self._names))
        with self._lock:
            if self._ended:  # nobody would tell this hearer
                raise ServiceError(self._ended)
            self._hear[name] = hear
        try:
            yield name
        finally:
            del self._hear[name]

    def _write(self, message: Json) -> None:
        if self._ended:
            raise ServiceError(self._ended)
        self._outgoing.put(json.dumps(message) + "\n")

    def _send(self) -> None:
        """Write to the process: a thread of its own, because a process that does not read would block the writer."""
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which the reader tells
            while (line := self._outgoing.get()) is not None:
                stream.write(line)
                stream.flush()
            stream.close()

    def _read(self) -> None:
        try:
            for line in self._process.stdout:  # type: ignore[union-attr]
                message = json.loads(line)
                name = next((str(message[key]) for key in ("tasks", "ask", "done", "failed") if key in message), "")
                self._tell(self._hear.get(name), message)
        except ValueError as error:
            self._process.kill()
            self._errors.write(f"\na line that is no message: {error}".encode())
        finally:
            with self._lock:
                self._ended = f"the process of {self._id} has ended: {self._last_words()}"
                hearers = list(self._hear.values())
            for hear in hearers:
                self._tell(hear, {"error": self._ended})

    @staticmethod
    def _tell(hear: Callable[[Json], None] | None, message: Json) -> None:
        if hear:  # an episode that was stopped may still speak
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                hear(message)

    def _last_words(self) -> str:
        try:
            self._errors.seek(0)
            return self._errors.read()[-ERROR_CHARS:].decode(errors="replace").strip() or "it said nothing"
        except ValueError:  # closed
            return "it was closed"


class Episode:
    """One episode. The environment asks for responses until it is over."""

    def __init__(self, service: Service, task: Json) -> None:
        self._service, loop = service, asyncio.get_running_loop()
        self._heard: asyncio.Queue[Json] = asyncio.Queue()
        self._stack = contextlib.ExitStack()

        def hear(message: Json) -> None:
            loop.call_soon_threadsafe(self._heard.put_nowait, message)

        self._name = self._stack.enter_context(service._heard(hear))
        self._open, self._turn = True, -1
        service._write({"play": self._name, "task": task})

    async def next(self) -> Json:
        """Wait for {"messages": [...]}, or {"reward": ..., "told": {...}} at the end. Raises ServiceError."""
        message = await self._heard.get()
        self._open = "ask" in message
        if "error" in message:
            raise ServiceError(message["error"])
        self._turn = message.get("turn", -1)
        return message

    def say(self, text: str) -> None:
        """Answer the messages."""
        self._service._write({"say": self._name, "turn": self._turn, "text": text})

    def close(self) -> None:
        """Stop the episode, if it is not over."""
        try:
            if self._open:
                with contextlib.suppress(ServiceError):
                    self._service._write({"stop": self._name})
        finally:
            self._stack.close()

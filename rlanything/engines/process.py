"""An engine in a process of its own, so that judging has one core while acting has another.

Requests that are made within a few turns of the event loop travel as one message, and the process finishes a message
before it reads the next. Batches therefore depend only on the order of events, not on timing, and a run is repeatable.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines.base import Completion, Engine, EngineError, EngineStats, SamplingParams, peak_memory_gb
from rlanything.types import Image, Message, Prompt
from rlanything.weights.precision import torch_dtype

if TYPE_CHECKING:
    from rlanything.engines.chat import Chat

Asked = Prompt | tuple[Message, ...]  # a conversation is encoded by the process
Reply = tuple[Prompt, list[Completion]]
LINGER = 8  # turns of the event loop that a message waits for more requests: large batches are faster
CLOSE_S = 5.0  # grace for the process to end once its pipe is closed; then it is killed


class ProcessEngine:
    """An `Engine` that runs the engine of `config` in a process with one CPU thread.

    The process loads its model while the caller goes on, and the first call waits for it. It ends with its parent.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, seed: int, log_path: Path) -> None:
        self.max_model_len = config.max_model_len
        self.dtype = torch_dtype(config.dtype, on_accelerator=False)
        self.version = 0
        self._log_path = log_path
        self._error: EngineError | None = None
        self._numbers = itertools.count()
        self._futures: dict[int, asyncio.Future[Reply]] = {}
        self._unsent: list[tuple[Any, ...]] = []
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, model, config.model_copy(update={"own_process": False}), seed, log_path)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        atexit.register(self.close)  # runs before Python joins the process, which ends only if its pipe is closed
        theirs.close()
        self._starting = True
        # A thread sends, so that a full pipe stops neither the episodes nor the replies.
        self._outbox: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        threading.Thread(target=_send_all, args=(self._pipe, self._outbox), daemon=True).start()

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, n: int = 1, images: Sequence[Image] = ()
    ) -> list[Completion]:
        return (await self._request(Prompt(ids=prompt_ids, images=tuple(images)), sampling, n))[1]

    async def ask(self, messages: Sequence[Message], sampling: SamplingParams, n: int = 1) -> Reply:
        """As `generate`, with a conversation that the process encodes. Returns the prompt too."""
        return await self._request(tuple(messages), sampling, n)

    async def _request(self, prompt: Asked, sampling: SamplingParams, n: int) -> Reply:
        self._finish_start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        number = next(self._numbers)
        if not self._futures:
            loop.add_reader(self._pipe.fileno(), self._read, loop)
        self._futures[number] = future
        if not self._unsent:
            loop.call_soon(self._send, loop, LINGER)
        self._unsent.append((number, prompt, sampling, n))
        return await future

    def load_weights(self, version: int, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._call("load_weights", version, [(name, tensor.float().cpu().numpy()) for name, tensor in tensors])
        self.version = version

    def clear_caches(self) -> None:
        self._call("clear_caches")

    def checksum(self) -> str:
        return str(self._call("checksum"))

    def sleep(self) -> None:
        self._call("sleep")

    def wake(self, cache: bool = True) -> None:
        self._call("wake", cache)

    def stats(self) -> EngineStats:
        stats: EngineStats = self._call("stats")
        return stats

    def close(self) -> None:
        """End the process, and fail unanswered requests."""
        atexit.unregister(self.close)
        self._fail(EngineError("the engine was closed"))
        self._outbox.put(None)
        self._pipe.close()
        self._process.join(CLOSE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _finish_start(self) -> None:
        if self._error is not None:
            raise EngineError(f"the engine died earlier: {self._error}; start a new one") from self._error
        if self._starting:
            self._starting = False
            try:
                self._returned()
            except EngineError as error:
                self._fail(error)
                raise

    def _call(self, method: str, *args: Any) -> Any:
        """Call the engine's method in the process. Returns or raises what it does."""
        self._finish_start()
        if method != "stats" and any(not f.done() for f in self._futures.values()):
            raise EngineError(f"{method}: {len(self._futures)} requests are under way; wait for them first")
        self._outbox.put((method, args))
        return self._returned()

    def _returned(self) -> Any:
        while True:
            kind, value = self._receive()
            if kind == "generated":  # answers to requests whose callers were cancelled
                self._resolve(value)
            elif isinstance(value, Exception):
                raise value
            else:
                return value

    def _send(self, loop: asyncio.AbstractEventLoop, linger: int) -> None:
        if linger:
            loop.call_soon(self._send, loop, linger - 1)
            return
        self._outbox.put(("generate", (self._unsent,)))
        self._unsent = []

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(EngineError):  # the futures hold the error
            self._resolve(self._receive()[1])
        if not self._futures:
            loop.remove_reader(self._pipe.fileno())

    def _receive(self) -> tuple[str, Any]:
        try:
            message: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError) as problem:
            self._process.join(CLOSE_S)
            code = self._process.exitcode
            error = EngineError(f"the engine's process ended with exit code {code}; why is in {self._log_path}")
            self._fail(error)
            raise error from problem
        return message

    def _resolve(self, replies: list[tuple[int, Reply | Exception]]) -> None:
        for number, reply in replies:
            future = self._futures.pop(number)
            if future.done():  # its caller was cancelled
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)

    def _fail(self, error: EngineError) -> None:
        self._error = self._error or error
        for future in self._futures.values():
            if not (future.done() or future.get_loop().is_closed()):
                future.get_loop().remove_reader(self._pipe.fileno())
                future.set_exception(error)
        self._futures.clear()


def _send_all(pipe: Connection, outbox: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None]) -> None:
    while (message := outbox.get()) is not None:
        try:
            pipe.send(message)
        except OSError:  # the process ended; receivers learn it from the pipe's other direction
            return


def _serve(pipe: Connection, model: ModelConfig, config: EngineConfig, seed: int, log_path: Path) -> None:
    """The process's main function: start the engine, then answer messages one by one until the pipe is closed.

    Its stdout and stderr go to `log_path`. An exception of the engine is raised in the parent.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path, "a") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    from rlanything.engines import start_engine
    from rlanything.engines.chat import Chat

    tqdm.set_lock(threading.RLock())  # its default lock is a named semaphore, which a kill leaves in /dev/shm
    torch.set_num_threads(1)
    try:
        engine = start_engine(model, config, seed, log_path)  # the parent has checked the model
        chat = Chat(model)
    except Exception as error:
        pipe.send(("returned", error))
        return
    pipe.send(("returned", None))
    with contextlib.suppress(EOFError, OSError), asyncio.Runner() as runner:
        while True:
            method, args = pipe.recv()
            if method == "generate":
                pipe.send(("generated", runner.run(_generate(engine, chat, *args))))
            else:
                pipe.send(("returned", _answer(engine, method, args)))


async def _generate(
    engine: Engine, chat: Chat, requests: list[tuple[int, Asked, SamplingParams, int]]
) -> list[tuple[int, Reply | Exception]]:
    async def one(number: int, prompt: Asked, sampling: SamplingParams, n: int) -> tuple[int, Reply | Exception]:
        try:
            read = prompt if isinstance(prompt, Prompt) else chat.prompt(prompt)
            return number, (read, await engine.generate(read.ids, sampling, n, read.images))
        except Exception as error:
            return number, error

    return list(await asyncio.gather(*(one(*request) for request in requests)))


def _answer(engine: Engine, method: str, args: tuple[Any, ...]) -> Any:
    try:
        if method == "load_weights":
            version, arrays = args
            return engine.load_weights(version, ((name, torch.from_numpy(array)) for name, array in arrays))
        result = getattr(engine, method)(*args)
        return replace(result, own_memory_gb=peak_memory_gb()) if method == "stats" else result
    except Exception as error:
        return error

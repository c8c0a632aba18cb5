"""Plays episodes of one environment of verifiers for a process that talks to it over its standard streams.

It runs under an interpreter that has verifiers, and imports nothing of rlanything. Each line is a JSON object.
It reads {"tasks": NAME, "config": {...}, "start": i, "num": n}, {"play": ID, "task": {...}},
{"say": ID, "turn": n, "text": ...} and {"stop": ID}; it writes {"tasks": NAME, "found": [...]},
{"ask": ID, "turn": n, "messages": [...]}, {"done": ID, "reward": ..., "told": {...}}, and
{"failed": ID or NAME, "error": ...}. It ends with its parent.
"""

import asyncio
import itertools
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

Json = dict[str, Any]
UNSCORED = ("scoring_timeout", "finalize_timeout")  # conditions at which verifiers leaves an episode without its reward
NO_KEY = "RLANYTHING_NO_KEY"  # the variable that verifiers reads a key from
PARENT_S = 1.0  # between two looks at whether the parent lives


def main() -> None:
    """Serve until the parent closes the stream or ends."""
    heard, lines = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a program that an environment starts must not read our messages
    os.dup2(2, 1)  # what an environment prints is no message
    for name in ("NO_PROXY", "no_proxy"):  # all that is asked of a model stays on this machine
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    os.environ.setdefault(NO_KEY, "none")
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.path[:0] = [str(Path(__file__).parent), os.getcwd()]
    try:
        asyncio.run(Service(json.loads(sys.argv[1]), heard, lines).serve())
    except ImportError as error:
        lines.write(json.dumps({"failed": "", "error": f"{error} (for the Python {sys.executable})"}) + "\n")
    except Exception as error:  # whatever verifiers raises at a configuration that it does not take
        lines.write(json.dumps({"failed": "", "error": f"{type(error).__name__}: {error}"}) + "\n")
        traceback.print_exc()
    lines.flush()
    os._exit(0)  # an environment may have left threads


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


class Service:
    """The environment, its tasks, and the episodes under way."""

    def __init__(self, options: Json, heard: Any, lines: Any) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils.generic import concrete_type
        from verifiers.v1.utils.loaders import environment_class, load_environment

        self.vf, self.heard, self.lines, self.id = vf, heard, lines, options["id"]
        config_class = concrete_type(environment_class(self.id), vf.EnvConfig, origin=vf.Env) or vf.EnvConfig
        roles = [name for name, field in config_class.model_fields.items() if field.annotation is vf.AgentConfig]
        if len(roles) != 1:
            raise ValueError(
                f"{self.id} has the agents {', '.join(roles) or 'none'}; expected one, which the policy is"
            )
        given: Json = options["environment"]
        agent = {"harness": {"id": "rlanything_chat"}, "runtime": {"type": "subprocess"}, **given.get(roles[0], {})}
        self.config_class, self.contained = config_class, "runtime" in given.get(roles[0], {})
        self.config: Json = {"interception": {"type": "server"}, **given, roles[0]: agent}
        self.env = load_environment(self._configured(options["arguments"]))
        self.load = load_environment
        self.prototype: Any = None
        self.playing: dict[str, asyncio.Task[None]] = {}
        self.waiting: dict[str, tuple[int, asyncio.Future[str]]] = {}
        self.turns = itertools.count()
        self.port = 0

    def _configured(self, arguments: Json) -> Any:
        return self.config_class.model_validate({**self.config, "taskset": {"id": self.id, **arguments}})

    async def serve(self) -> None:
        """Read lines until the stream ends."""
        from aiohttp import web

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._ask)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        messages: asyncio.Queue[Json | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def read() -> None:  # in a thread of its own: an environment may keep all of the executor's
            for line in self.heard:
                loop.call_soon_threadsafe(messages.put_nowait, json.loads(line))
            loop.call_soon_threadsafe(messages.put_nowait, None)

        async with self.env.serving():
            self.say(ready=True)
            threading.Thread(target=read, daemon=True).start()
            while (message := await messages.get()) is not None:
                self._take(message)
            for episode in list(self.playing.values()):
                episode.cancel()

    def say(self, **message: Any) -> None:
        """Write one line."""
        self.lines.write(json.dumps(message) + "\n")

    def _take(self, message: Json) -> None:
        if "tasks" in message:
            self._start(message["tasks"], self._tell_tasks(message))
        elif "play" in message:
            self._start(message["play"], self._play(message["play"], message["task"]))
        elif "say" in message:
            turn, future = self.waiting.get(message["say"], (-1, None))
            if future and turn == message["turn"]:  # else the environment has given up that request
                del self.waiting[message["say"]]
                future.set_result(message["text"])
        elif episode := self.playing.get(message["stop"]):
            episode.cancel()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except Exception as error:  # an environment may raise anything
                self.say(failed=name, error=f"{type(error).__name__}: {error}")
            finally:
                self.playing.pop(name, None)
                self.waiting.pop(name, None)

        self.playing[name] = asyncio.create_task(guarded())

    async def _tell_tasks(self, message: Json) -> None:
        env = self.load(self._configured(message["config"]))
        start, num = message["start"], message["num"]
        tasks = await asyncio.to_thread(lambda: list(itertools.islice(env.taskset, start, start + num)))
        first = await self._first()
        for task in tasks:
            self._check(task, first)
        self.say(tasks=message["tasks"], found=[t.data.model_dump(mode="json", exclude_defaults=True) for t in tasks])

    async def _first(self) -> Any:
        """The environment's first task, whose class and configuration all others share."""
        if self.prototype is None:
            self.prototype = await asyncio.to_thread(lambda: next(iter(self.env.taskset)))
        return self.prototype

    def _check(self, task: Any, first: Any) -> None:
        if type(task) is not type(first):
            raise ValueError(f"{self.id} mixes {type(first).__name__} and {type(task).__name__}; expected one")
        if task.config != first.config:
            raise ValueError(
                "dataset.options.splits changes how tasks are scored (taskset.task), which all splits share; expected "
                "keys that choose tasks, and the others in dataset.options.arguments"
            )
        if task.data.image and not self.contained:
            raise ValueError(
                f"a task of {self.id} runs in the image {task.data.image}; name a runtime for its agent in "
                "dataset.options.environment"
            )

    async def _play(self, name: str, payload: Json) -> None:
        vf = self.vf
        first = await self._first()
        task = type(first)(type(first.data).model_validate(payload), first.config)
        # verifiers keeps a connection for each configuration of a client, so the model's name tells the episode.
        client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{self.port}/v1", api_key_var=NO_KEY)
        context = vf.ModelContext(model=name, client=client, sampling=vf.SamplingConfig())
        episode = await self.env.run_episode(task, context)
        late = [t.stop_condition for t in episode.traces if t.stop_condition in UNSCORED]
        if not episode.ok or late or any(r is None for t in episode.traces for r in t.rewards.values()):
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError("; ".join([*late, *(error.message[:500] for error in errors)]) or "it was not scored")
        told: Json = {}
        for trace in episode.traces:
            told |= {name: reward.value for name, reward in trace.rewards.items()}
            told |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
        self.say(done=name, reward=sum(trace.reward for trace in episode.traces), told=told)

    async def _ask(self, request: Any) -> Any:
        from aiohttp import web

        body = await request.json()
        name = body["model"]
        if body.get("tools") or body.get("stream"):
            return web.json_response({"error": {"message": "tools and streams are not offered"}}, status=400)
        if name not in self.playing or name in self.waiting:
            why = "a role with a model of its own, or several requests of one episode at once: neither is offered"
            return web.json_response({"error": {"message": why}}, status=400)
        turn, future = next(self.turns), asyncio.get_running_loop().create_future()
        self.waiting[name] = turn, future
        try:
            self.say(ask=name, turn=turn, messages=body["messages"])
            message = {"role": "assistant", "content": await future}
        finally:
            if self.waiting.get(name, (-1, None))[0] == turn:
                del self.waiting[name]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": name, "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        return web.json_response(answer | {"usage": usage})


if __name__ == "__main__":
    main()

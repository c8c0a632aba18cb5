"""Plays episodes of one environment of verifiers for a process that talks to it over its standard streams.

It runs under an interpreter that has verifiers, and imports nothing of rlanything. Each line is a JSON object.
It reads {"tasks": NAME, "config": {...}, "start": i, "num": n}, {"play": ID, "task": {...}}, {"say": ID, "text": ...}
and {"stop": ID}; it writes {"tasks": NAME, "found": [...]}, {"ask": ID, "messages": [...]},
{"done": ID, "reward": ..., "told": {...}}, and {"failed": ID or NAME, "error": ...}. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PARENT_S = 1.0  # between two looks at whether the parent lives


def main() -> None:
    """Serve until the parent closes the stream or ends."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what an environment prints is no message
    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    sys.path[:0] = [str(Path(__file__).parent), os.getcwd()]
    try:
        asyncio.run(Service(json.loads(sys.argv[1]), lines).serve())
    except ImportError as error:
        lines.write(json.dumps({"failed": "", "error": f"{error} (for the Python {sys.executable})"}) + "\n")
    except Exception as error:  # whatever verifiers raises at a configuration that it does not take
        lines.write(json.dumps({"failed": "", "error": f"{type(error).__name__}: {error}"}) + "\n")
    lines.flush()
    os._exit(0)  # an environment may have left threads


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(1)


class Service:
    """The environment, its tasks, and the episodes under way."""

    def __init__(self, options: Json, lines: Any) -> None:
        import verifiers.v1 as vf
        from verifiers.v1.utils.generic import concrete_type
        from verifiers.v1.utils.loaders import environment_class, load_environment

        self.vf, self.lines, self.id = vf, lines, options["id"]
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
        self.waiting: dict[str, asyncio.Future[str]] = {}
        self.port = 0

    def _configured(self, arguments: Json) -> Any:
        return self.config_class.model_validate({**self.config, "taskset": {"id": self.id, **arguments}})

    async def serve(self) -> None:
        """Read lines until the stream ends."""
        from aiohttp import web

        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{id}/v1/chat/completions", self._ask)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.say(ready=True)
        async with self.env.serving():
            while line := await asyncio.to_thread(sys.stdin.readline):
                self._take(json.loads(line))
            for episode in self.playing.values():
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
            if future := self.waiting.pop(message["say"], None):
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
        for task in tasks:
            self._check(task)
        self.say(tasks=message["tasks"], found=[t.data.model_dump(mode="json", exclude_defaults=True) for t in tasks])

    def _check(self, task: Any) -> None:
        self.prototype = self.prototype or task
        if type(task) is not type(self.prototype):
            raise ValueError(f"{self.id} mixes {type(self.prototype).__name__} and {type(task).__name__}; expected one")
        if task.data.image and not self.contained:
            raise ValueError(
                f"a task of {self.id} runs in the image {task.data.image}; name a runtime for its agent in "
                "dataset.options.environment"
            )

    async def _play(self, name: str, payload: Json) -> None:
        vf = self.vf
        if self.prototype is None:
            self._check(await asyncio.to_thread(lambda: next(iter(self.env.taskset))))
        first = self.prototype
        task = type(first)(type(first.data).model_validate(payload), first.config)
        os.environ.setdefault("RLANYTHING_NO_KEY", "none")
        client = vf.EvalClientConfig(
            base_url=f"http://127.0.0.1:{self.port}/{name}/v1", api_key_var="RLANYTHING_NO_KEY"
        )
        context = vf.ModelContext(model="policy", client=client, sampling=vf.SamplingConfig())
        episode = await self.env.run_episode(task, context)
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors:
            raise RuntimeError("; ".join(error.message[:500] for error in errors))
        told: Json = {}
        for trace in episode.traces:
            told |= {name: reward.value for name, reward in trace.rewards.items() if reward is not None}
            told |= {name: float(value) for name, value in trace.metrics.items() if value is not None}
        self.say(done=name, reward=sum(trace.reward for trace in episode.traces), told=told)

    async def _ask(self, request: Any) -> Any:
        from aiohttp import web

        name, body = request.match_info["id"], await request.json()
        if body.get("tools") or body.get("stream"):
            return web.json_response({"error": {"message": "tools and streams are not offered"}}, status=400)
        future = self.waiting[name] = asyncio.get_running_loop().create_future()
        self.say(ask=name, messages=body["messages"])
        message = {"role": "assistant", "content": await future}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {"id": name, "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
        return web.json_response(answer | {"usage": usage})


if __name__ == "__main__":
    main()

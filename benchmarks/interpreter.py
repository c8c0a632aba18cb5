"""Calls of a code tool a second: this project's sessions by replay, against a process for each episode.

    pip install jupyter-client ipykernel
    python benchmarks/interpreter.py --repeat 3 [--cells 12]

An episode has three calls that share names, or more. Ours runs all episodes at once. The others keep a process for an
open session, so they run two for each core: a Jupyter kernel, and a child that is forked from this process. The child
has no sandbox around it, so it shows the most that a cache of forked children could gain. The three take turns; the
median of each counts. Prints calls a second, their ratios, and what an open
session takes in memory (proportional set size).
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from multiprocessing.connection import Connection

import psutil

from rlanything.config.schema import SandboxConfig
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning.interpreter import CallLimits, Interpreter

FIRST, LAST = ("n = {i} * 97", "total = sum(k * k for k in range(n))"), "total % 1000"
LIMITS = CallLimits(call_s=5.0, session_s=60.0, max_chars=2000)


def expected(i: int) -> str:
    return str(sum(k * k for k in range(i * 97)) % 1000)


def memory(process: psutil.Process) -> float:
    """The share of the memory that a process and those below it hold [MiB]."""
    every = [process, *process.children(recursive=True)]
    return sum(p.memory_full_info().pss for p in every) / 2**20


async def by_replay(programs: Programs, cells: Sequence[str], num: int) -> tuple[list[str], float]:
    """The last outputs, and the memory of a session that is open [MiB]."""
    before = memory(psutil.Process())
    sessions = [Interpreter(programs=programs, limits=LIMITS) for _ in range(num)]

    async def episode(i: int) -> str:
        for cell in cells:
            text, _ = await sessions[i].call(cell.format(i=i))
        return text

    answers = list(await asyncio.gather(*map(episode, range(num))))
    return answers, (memory(psutil.Process()) - before) / num


def forked(commands: Connection) -> None:
    """A session in a process of its own: run each cell that comes, and send the value of its last expression."""
    names: dict[str, object] = {}
    while cell := commands.recv():
        tree = ast.parse(cell)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else ""
        commands.send(str(value))


async def by_forks(cells: Sequence[str], num: int) -> tuple[list[str], float]:
    """The last outputs, and the memory of a forked child [MiB]."""
    at_once, sizes = asyncio.Semaphore(2 * (os.cpu_count() or 1)), []

    async def episode(i: int) -> str:
        async with at_once:
            ours, its = multiprocessing.Pipe()
            child = multiprocessing.get_context("fork").Process(target=forked, args=[its])
            child.start()
            for cell in cells:
                ours.send(cell.format(i=i))
                text = await asyncio.to_thread(ours.recv)
            sizes.append(psutil.Process(child.pid).memory_full_info().pss / 2**20)
            ours.send("")
            child.join()
            return str(text)

    return list(await asyncio.gather(*map(episode, range(num)))), statistics.median(sizes)


async def by_kernels(cells: Sequence[str], num: int) -> tuple[list[str], float]:
    """The last outputs, and the memory of a kernel [MiB]."""
    from jupyter_client.manager import AsyncKernelManager

    at_once, sizes = asyncio.Semaphore(2 * (os.cpu_count() or 1)), []

    async def episode(i: int) -> str:
        async with at_once:
            manager = AsyncKernelManager()
            await manager.start_kernel()
            client = manager.client()
            client.start_channels()
            try:
                await client.wait_for_ready(timeout=60)
                said: list[str] = []
                for cell in cells:
                    said.clear()
                    await client.execute_interactive(cell.format(i=i), output_hook=lambda m: said.append(_text(m)))
                sizes.append(psutil.Process(manager.provisioner.pid).memory_full_info().pss / 2**20)
                return "".join(said)
            finally:
                client.stop_channels()
                await manager.shutdown_kernel(now=True)

    return list(await asyncio.gather(*map(episode, range(num)))), statistics.median(sizes)


def _text(message: dict) -> str:  # type: ignore[type-arg]
    return str(message["content"].get("data", {}).get("text/plain", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=200, help="episodes of ours; a tenth of it with kernels")
    parser.add_argument("--cells", type=int, default=3, help="calls of an episode, at least 3")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    if args.cells < 3:
        parser.error(f"--cells {args.cells}: an episode has at least 3 calls")

    cells = [*FIRST, *[LAST] * (args.cells - len(FIRST))]
    few = args.num // 10
    with closing(Programs(SandboxConfig())) as programs:
        asyncio.run(by_replay(programs, cells, 8))  # starts the runners
        ways = {
            "replay": (args.num, lambda: by_replay(programs, cells, args.num)),
            "forked": (args.num, lambda: by_forks(cells, args.num)),
            "kernels": (few, lambda: by_kernels(cells, few)),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        sizes: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.repeat):
            for name, (num, play) in ways.items():
                started = time.perf_counter()
                answers, size = asyncio.run(play())
                rates[name].append(len(cells) * num / (time.perf_counter() - started))
                sizes[name].append(size)
                assert answers == [expected(i) for i in range(num)], name
    replay = statistics.median(rates["replay"])
    for name in ways:
        rate, size = statistics.median(rates[name]), statistics.median(sizes[name])
        print(f"{name:8} {rate:7.1f} calls/s, replay / this {replay / rate:5.2f}, an open session {size:6.2f} MiB")


if __name__ == "__main__":
    main()

"""Calls of a code tool a second: this project's sessions by replay, against a Jupyter kernel for each episode.

    pip install jupyter-client ipykernel
    python benchmarks/interpreter.py --repeat 3

An episode has three calls that share names. Ours runs all episodes at once; kernels run two for each core, because a
kernel takes tens of MB. The order alternates; the median of each counts. Prints calls a second, their ratio, and the
memory of an open session (proportional set size of a kernel's process; ours has none).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import closing

import psutil

from rlanything.config.schema import SandboxConfig
from rlanything.domains.programs import Programs
from rlanything.domains.reasoning.interpreter import CallLimits, Interpreter

CELLS = ("n = {i} * 97", "total = sum(k * k for k in range(n))", "total % 1000")
LIMITS = CallLimits(call_s=5.0, session_s=60.0, max_chars=2000)


def expected(i: int) -> str:
    return str(sum(k * k for k in range(i * 97)) % 1000)


async def by_replay(programs: Programs, num: int) -> list[str]:
    async def episode(i: int) -> str:
        session = Interpreter(programs=programs, limits=LIMITS)
        for cell in CELLS:
            text, _ = await session.call(cell.format(i=i))
        return text

    return list(await asyncio.gather(*map(episode, range(num))))


async def by_kernels(num: int) -> tuple[list[str], float]:
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
                for cell in CELLS:
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
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()

    rates: dict[str, list[float]] = {"replay": [], "kernels": []}
    memory = []
    with closing(Programs(SandboxConfig())) as programs:
        assert asyncio.run(by_replay(programs, 8)) == [expected(i) for i in range(8)]  # starts the runners
        for _ in range(args.repeat):
            started = time.perf_counter()
            asyncio.run(by_replay(programs, args.num))
            rates["replay"].append(len(CELLS) * args.num / (time.perf_counter() - started))
            started = time.perf_counter()
            answers, size = asyncio.run(by_kernels(args.num // 10))
            rates["kernels"].append(len(CELLS) * (args.num // 10) / (time.perf_counter() - started))
            assert answers == [expected(i) for i in range(args.num // 10)]
            memory.append(size)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"{name:8} {rate:6.1f} calls/s")
    print(
        f"replay / kernels: {medians['replay'] / medians['kernels']:.1f}; a kernel: {statistics.median(memory):.0f} MiB"
    )


if __name__ == "__main__":
    main()

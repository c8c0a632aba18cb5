"""How many executions a second the sandbox makes, against one new interpreter each.

    python benchmarks/sandbox.py --repeat 3

Both execute the same small program on many inputs and keep all cores busy: the sandbox isolated, with as many runners
as it takes by itself; the other with one thread a core that calls `subprocess.run([python, "-c", program])`, with no
isolation at all. The order alternates; the median of each counts. Prints executions a second, and the ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Limits

PROGRAM = """
import sys
n = int(sys.stdin.readline())
numbers = list(map(int, sys.stdin.readline().split()))
print(n, sum(numbers), max(numbers))
"""


def inputs(num: int) -> list[bytes]:
    return [f"{i}\n{' '.join(str(i * j % 97) for j in range(1, 50))}\n".encode() for i in range(num)]


async def in_sandbox(sandbox: Sandbox, num: int) -> list[bytes]:
    results = await asyncio.gather(*(sandbox.run(PROGRAM.encode(), given, Limits()) for given in inputs(num)))
    return [result.output for result in results]


def in_new_interpreters(num: int) -> list[bytes]:
    def one(given: bytes) -> bytes:
        done = subprocess.run([sys.executable, "-c", PROGRAM], input=given, capture_output=True, check=True, timeout=10)
        return done.stdout

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(one, inputs(num)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=400, help="executions in the sandbox; a quarter of it without")
    parser.add_argument("--runners", type=int, default=0, help="0: as many as the sandbox takes by itself")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()

    rates: dict[str, list[float]] = {"sandbox": [], "subprocess": []}
    with Sandbox(args.runners) as sandbox:
        expected = in_new_interpreters(8)
        assert asyncio.run(in_sandbox(sandbox, 64))[:8] == expected  # starts the runners
        for _ in range(args.repeat):
            started = time.perf_counter()
            asyncio.run(in_sandbox(sandbox, args.num))
            rates["sandbox"].append(args.num / (time.perf_counter() - started))
            started = time.perf_counter()
            in_new_interpreters(args.num // 4)
            rates["subprocess"].append(args.num // 4 / (time.perf_counter() - started))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, rate in medians.items():
        print(f"{name:10} {rate:6.0f} executions/s")
    print(f"sandbox / subprocess: {medians['sandbox'] / medians['subprocess']:.1f}")


if __name__ == "__main__":
    main()

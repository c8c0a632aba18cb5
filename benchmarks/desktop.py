"""Speed and memory of desktops, and what resets leave behind.

`python benchmarks/desktop.py` prints the rate of drawn desktops and, if they are installed, the figures of local ones.
`--resets 1000` counts processes, folders, files and mounts before and after so many resets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.canvas.acting import perform
from rlanything.domains.osworld.canvas.demonstrations import wrong_move
from rlanything.domains.osworld.canvas.drawing import draw, png
from rlanything.domains.osworld.canvas.solver import distance
from rlanything.domains.osworld.canvas.tasks import make_family
from rlanything.domains.osworld.desktops.backends import check_backend, local, make_pool
from rlanything.domains.osworld.desktops.client import PREFIX
from rlanything.domains.osworld.desktops.generator import generated
from rlanything.domains.osworld.desktops.local import PREFIX as FOLDERS
from rlanything.domains.osworld.desktops.local import LocalDesktop
from rlanything.domains.osworld.desktops.setup import set_up
from rlanything.domains.osworld.desktops.usage import children
from rlanything.domains.osworld.desktops.verify import share
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.errors import TaskError

CLICK = "pyautogui.click(900, 500)"
REPEATS = 30
END_S = 3.0  # time that the kernel has to end the processes of a closed desktop
PROGRAMS = ("bwrap", "Xvfb", "openbox", "pcmanfm")  # of every desktop


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--desktops", type=int, nargs="*", default=[1, 2, 4, 8, 16], help="numbers of desktops at once")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each number")
    parser.add_argument("--resets", type=int, default=0, help="resets after which leaks are counted")
    args = parser.parse_args()
    print(f"drawn desktop: {drawn(5.0):,.0f} steps/s on one core, with picture and exact label")
    try:
        check_backend(OsworldOptions(backend="local"))
    except TaskError as error:
        print(f"local desktops: {error}")
        return
    asyncio.run(operations())
    for num in args.desktops:
        asyncio.run(many(num, args.seconds))
    if args.resets:
        asyncio.run(resets(args.resets))


def drawn(seconds: float) -> float:
    """Steps a second of drawn desktops: an action, the picture as a PNG, and the distance that labels the step."""
    rng, steps, started = random.Random(0), 0, time.process_time()
    while time.process_time() - started < seconds:
        family = make_family(f"benchmark/{steps}", "middle", 0.0)
        desk, goals = family.desk.clone(), family.verifiers[0].goals
        for _ in range(100):
            perform(desk, wrong_move(rng, desk).action)
            png(draw(desk))
            distance(goals, True, desk)
            steps += 1
    return steps / (time.process_time() - started)


async def operations() -> None:
    """Print the time of each operation on one desktop."""
    start = local(OsworldOptions(backend="local"))

    async def boot() -> None:
        desktop = start()
        await desktop.boot()
        await desktop.connect()
        await desktop.close()

    print(f"reset (boot, connect, end): {await timed(boot, 10):.0f} ms")
    desktop = start()
    try:
        await desktop.boot()
        await desktop.connect()
        guest, [family] = desktop.guest, generated("train", 1, 0.0)
        await set_up(guest, family.config)
        verifier = family.verifiers[family.current]
        print(f"screenshot: {await timed(guest.screenshot):.0f} ms")
        click = Action(kind="left_click", coordinate=(500, 500))
        inside = await timed(lambda: guest.perform(click))
        spawned = await timed(lambda: guest.execute(["python", "-c", PREFIX + CLICK]))
        print(
            f"click in the server: {inside:.1f} ms; in a process of its own: {spawned:.0f} ms; {spawned / inside:.0f}x"
        )
        print(f"evaluate (own checks): {await timed(lambda: share(guest, verifier.checks or [])):.0f} ms")
    finally:
        await desktop.close()


async def timed(call: Callable[[], Awaitable[object]], repeats: int = REPEATS) -> float:
    """Median time of a call [ms]."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - started)
    return 1000 * statistics.median(taken)


async def many(num: int, seconds: float) -> None:
    """Print steps a second and memory of `num` desktops, each with an editor, that click and look all the time."""
    start = local(OsworldOptions(backend="local"))
    desktops = [start() for _ in range(num)]
    try:
        await asyncio.gather(*(desktop.boot() for desktop in desktops))
        for desktop in desktops:
            await desktop.connect()
        family = generated("train", 2, 0.0)[1]
        await asyncio.gather(*(set_up(desktop.guest, family.config) for desktop in desktops))
        until = time.perf_counter() + seconds
        counts = await asyncio.gather(*(act(desktop, until) for desktop in desktops))
        memory = sum(proportional(desktop) for desktop in desktops)
        print(f"{num} desktops: {sum(counts) / seconds:.0f} steps/s, {memory / num:.0f} MiB each (PSS)")
    finally:
        for desktop in desktops:
            await desktop.close()


async def act(desktop: LocalDesktop, until: float) -> int:
    """Steps (a click and a still screenshot) up to a time."""
    steps, rng = 0, random.Random(0)
    while time.perf_counter() < until:
        await desktop.guest.perform(Action(kind="left_click", coordinate=(rng.randint(0, 999), rng.randint(0, 999))))
        await desktop.guest.screenshot(2.0)
        steps += 1
    return steps


def proportional(desktop: LocalDesktop) -> float:
    """Proportional set size of a desktop's processes [MiB]."""
    by_parent, waiting, total = children(), [desktop.process.pid], 0.0
    while waiting:
        process = waiting.pop()
        waiting += by_parent.get(process, ())
        try:
            total += psutil.Process(process).memory_full_info().pss / 2**20
        except psutil.Error:
            continue
    return total


def left() -> dict[str, int]:
    """Counts of everything that a desktop could leave behind on this machine."""
    return {
        "processes": len(psutil.Process().children(recursive=True)),
        "desktops' processes, whoever their parent is": sum(
            p.name() in PROGRAMS for p in psutil.process_iter(["name"])
        ),
        "folders": len(list(Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"))),
        "shared memory files": len(os.listdir("/dev/shm")),
        "open files": psutil.Process().num_fds(),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
    }


async def resets(num: int) -> None:
    """Lease and release desktops so often, and print what is left."""
    await asyncio.sleep(END_S)
    before = left()
    pool, started = make_pool(OsworldOptions(backend="local", desktops=2, spares=2)), time.perf_counter()

    async def one() -> None:
        await pool.release(await pool.lease())

    await asyncio.gather(*(one() for _ in range(num)))
    pool.close()
    seconds = time.perf_counter() - started
    await asyncio.sleep(END_S)
    after = left()
    print(
        f"{num} resets in {seconds:.0f} s; before and after: "
        + ", ".join(f"{k} {v} {after[k]}" for k, v in before.items())
    )


if __name__ == "__main__":
    main()

"""Tells which verifiers a backend can be used with: their set-up succeeds, and an untouched desktop scores 0.

A run tries what nobody tried yet, before it loads models, and keeps the verdicts in a file. What broke (set-up, files,
evaluator) is left out of this run alone: the next one tries it again. Generated families need no tries: their scripts
are tests.
"""

import asyncio
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.env import DesktopEnv
from rlanything.errors import ClearError, TaskError
from rlanything.processes.files import written_at_once

SCORES = "an untouched desktop scores"  # begins a verdict
UNSOLVED = "giving up does not solve it, although it cannot be done"  # a verdict
ATTEMPTS = 2  # at a verifier whose desktop breaks
UNTOUCHED_S = 5.0  # programs write settings a while after they start, which some evaluators take for the solution


@dataclass(kw_only=True)
class Admission:
    """Tells which verifiers one backend can be used with."""

    path: Path | None = None
    """The file that keeps the verdicts; None if the families are generated."""
    verdicts: dict[str, str] = field(default_factory=dict)
    """Why verifiers cannot be used, or an empty text, by a name that tells what was tried."""
    faults: dict[str, str] = field(default_factory=dict)
    """Faults that this process met when it tried verifiers, by the same names."""

    @classmethod
    def read(cls, path: Path) -> "Admission":
        """Read a file. If it is not there, no verifier was tried. Raises TaskError if it cannot be read."""
        try:
            found = json.loads(path.read_bytes()) if path.is_file() else {}
        except (OSError, ValueError) as error:
            raise TaskError(f"{path}: {error}; remove it, and all verifiers are tried anew") from error
        if not isinstance(found, dict) or not all(isinstance(why, str) for why in found.values()):
            raise TaskError(f"{path}: found no verdicts by name; remove it, and all verifiers are tried anew")
        return cls(path=path, verdicts=found)

    def why(self, name: str) -> str:
        """Return why a verifier cannot be used; empty if it can, or if nobody tried."""
        return self.verdicts.get(name) or self.faults.get(name, "")

    def is_known(self, name: str) -> bool:
        """True if the file has a verdict, or if this process tried it."""
        return name in self.verdicts or name in self.faults

    def keep(self, name: str, why: str) -> None:
        """Keep a verdict in the file, a fault in this process. Raises TaskError if the file cannot be written."""
        assert self.path
        is_fault = bool(why) and why != UNSOLVED and not why.startswith(SCORES)
        for holder in (self.verdicts, self.faults):  # what an earlier try found
            holder.pop(name, None)
        (self.faults if is_fault else self.verdicts)[name] = why
        try:
            with written_at_once(self.path) as new:
                new.write_text(json.dumps(self.verdicts, indent=1), encoding="utf-8")
        except OSError as error:
            raise TaskError(f"{self.path} keeps which verifiers can be used, and cannot be written: {error}") from error

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Hold the file's lock while the block runs, and know what others kept before: runs that begin together try
        nothing twice. `say` is told if another run holds it. Raises TaskError if the folder cannot be written."""
        assert self.path
        try:
            lock = open(self.path.with_suffix(".lock"), "a")
        except OSError as error:
            raise TaskError(
                f"{self.path} keeps which verifiers can be used, and its folder cannot be written ({error}): make it "
                "writable, or copy the tasks into a folder that is"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"waiting for another run that tries verifiers for {self.path}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self.verdicts = Admission.read(self.path).verdicts
            yield


async def try_all(
    envs: Mapping[str, Callable[[], DesktopEnv]], at_once: int, on_end: Callable[[str, str], None]
) -> None:
    """Play verifiers untouched, `at_once` beside one another. `envs` makes the environment of each by its name.

    `on_end` gets each name with the reason why the verifier cannot be used, or "". Raises TaskError if no desktop can
    be had at all, which says nothing of a verifier.
    """
    limit, is_had = asyncio.Semaphore(at_once), False

    async def one(name: str) -> None:
        nonlocal is_had
        async with limit:
            for left in reversed(range(ATTEMPTS)):
                env: DesktopEnv | None = None
                try:
                    env = envs[name]()
                    why, is_had = await _refusal(env), True
                    break
                except ClearError:
                    raise
                except Exception as fault:  # desktops and evaluators are third-party code
                    why = str(fault) or type(fault).__name__
                    is_had |= env is not None and env.leased
                    if not is_had and not left:
                        raise TaskError(f"no desktop can be had to try {name}: {why}") from fault
        on_end(name, why)

    await asyncio.gather(*map(one, envs))


async def _refusal(env: DesktopEnv) -> str:
    """Why a verifier cannot be used; "" if it can. Raises DesktopFault if the desktop ended."""
    feasible = env.verifier.feasible
    untouched = Action(kind="wait", time=UNTOUCHED_S) if feasible else Action(kind="terminate", status="failure")
    try:
        await env.reset()
        score = await env.score(await env.step(untouched.to_json()))
        if env.desktop and env.desktop.ended_by:
            raise DesktopFault(f"the untouched desktop ended: {env.desktop.ended_by}")
    finally:
        await env.close()
    if feasible:
        return f"{SCORES} {score.reward:g}" if score.reward else ""
    return "" if score.success else UNSOLVED

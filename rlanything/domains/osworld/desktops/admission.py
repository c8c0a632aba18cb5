"""Tells which verifiers a backend can be used with: their set-up succeeds, and an untouched desktop scores 0.

A run tries what nobody tried yet, before it loads models, and keeps the verdicts in a file. Generated families need
none: their scripts are tests.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.env import DesktopEnv
from rlanything.errors import ClearError, TaskError

SCORES = "an untouched desktop scores"  # begins a reason
ATTEMPTS = 2  # at a verifier whose desktop breaks: a fault that passes must not refuse it for good
UNTOUCHED_S = 5.0  # programs write settings a while after they start, which some evaluators take for the solution


@dataclass(kw_only=True)
class Admission:
    """Tells which verifiers one backend can be used with."""

    path: Path | None = None
    """The file that keeps it; None if the families are generated."""
    tried: dict[str, str] = field(default_factory=dict)
    """Verifiers (`family/verifier`) that were tried, with the reason why they cannot be used, or an empty text."""

    @classmethod
    def read(cls, path: Path) -> "Admission":
        """Read a file. If it is not there, no verifier was tried. Raises TaskError if it cannot be read."""
        try:
            return cls(path=path, tried=json.loads(path.read_bytes()) if path.is_file() else {})
        except (OSError, ValueError) as error:
            raise TaskError(f"{path}: {error}; remove it, and all verifiers are tried anew") from error

    def why(self, verifier: str) -> str:
        """Return why a verifier cannot be used; empty if it can, or if nobody tried."""
        return self.tried.get(verifier, "")

    def keep(self, verifier: str, why: str) -> None:
        """Keep a verdict, beside those that other runs found meanwhile. Raises TaskError if it cannot be written."""
        assert self.path
        self.tried[verifier] = why
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            part.write_text(json.dumps(Admission.read(self.path).tried | {verifier: why}, indent=1), encoding="utf-8")
            os.replace(part, self.path)
        except OSError as error:
            raise TaskError(
                f"{self.path}: cannot be written ({error}); it keeps which verifiers can be used"
            ) from error


async def try_all(
    envs: Mapping[str, Callable[[], DesktopEnv]], at_once: int, on_end: Callable[[str, str], None]
) -> None:
    """Play verifiers (`family/verifier`) untouched, `at_once` beside one another. `envs` makes each one's environment.

    `on_end` gets each verifier with the reason why it cannot be used, or "". Raises TaskError if no desktop can be had,
    which says nothing of a verifier.
    """
    limit = asyncio.Semaphore(at_once)

    async def one(name: str) -> None:
        async with limit:
            for left in reversed(range(ATTEMPTS)):
                env = envs[name]()
                try:
                    why = await _refusal(env)
                    break
                except ClearError:
                    raise
                except Exception as fault:  # desktops and evaluators are third-party code
                    why = str(fault) or type(fault).__name__
                    if not env.leased and not left:
                        raise TaskError(f"no desktop can be had to try {name}: {why}") from fault
        on_end(name, why)

    await asyncio.gather(*map(one, envs))


async def _refusal(env: DesktopEnv) -> str:
    """Why a verifier cannot be used; "" if it can."""
    feasible = env.verifier.feasible
    untouched = Action(kind="wait", time=UNTOUCHED_S) if feasible else Action(kind="terminate", status="failure")
    try:
        await env.reset()
        score = await env.score(await env.step(untouched.to_json()))
    finally:
        await env.close()
    if feasible:
        return f"{SCORES} {score.reward:g}" if score.reward else ""
    return "" if score.success else "giving up does not solve it, although it cannot be done"

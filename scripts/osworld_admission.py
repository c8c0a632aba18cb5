"""Finds which tasks a backend can use: the set-up succeeds, and a desktop that nobody touched scores 0.

`python scripts/osworld_admission.py config=FILE.yaml [split=NAME] [key=value ...]` plays every verifier of the split's
families untouched, and writes why which cannot be used to `admission_<backend>.json` in `dataset.path`, or to
`admission_<function>_<backend>.json` beside the module of `dataset.options.families`. Later runs leave these out, and
the rewriter is not offered them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing

from rlanything.config.load import load_as
from rlanything.config.schema import Config
from rlanything.domains.base import Env
from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.admission import SCORES, Admission
from rlanything.domains.osworld.desktops.world import DesktopWorld
from rlanything.domains.osworld.domain import OsworldDomain
from rlanything.domains.osworld.world import payload
from rlanything.errors import TaskError
from rlanything.processes.guard import run_guarded
from rlanything.types import Task

ATTEMPTS = 2  # at a task whose desktop breaks: a fault that passes must not refuse it for good
UNTOUCHED_S = 5.0  # programs write settings a while after they start, which some evaluators take for the solution


async def tried(domain: OsworldDomain, names: Sequence[str], on_end: Callable[[str, str], None]) -> dict[str, str]:
    """Why verifiers of families cannot be used, or "", by `family/verifier`. `on_end` gets that name and the reason."""
    assert isinstance(domain.world, DesktopWorld)
    families, limit, found = domain.world.families, asyncio.Semaphore(domain.world.capacity), dict[str, str]()

    async def one(name: str, key: str, feasible: bool) -> None:
        async with limit:
            for _ in range(ATTEMPTS):
                try:
                    env = domain.make_env(Task(id=name, payload=payload(name, key, "untouched")))
                    why = await _refusal(env, feasible)
                    break
                except Exception as fault:  # desktops and evaluators are third-party code
                    why = str(fault) or type(fault).__name__
        found[f"{name}/{key}"] = why
        on_end(f"{name}/{key}", why)

    await asyncio.gather(*(one(n, key, v.feasible) for n in names for key, v in families[n].verifiers.items()))
    return found


async def _refusal(env: Env, feasible: bool) -> str:
    """Why a task cannot be used; "" if it can."""
    untouched = Action(kind="wait", time=UNTOUCHED_S) if feasible else Action(kind="terminate", status="failure")
    try:
        await env.reset()
        score = await env.score(await env.step(untouched.to_json()))
    finally:
        await env.close()
    if feasible:
        return f"{SCORES} {score.reward:g}" if score.reward else ""
    return "" if score.success else "giving up does not solve it, although it cannot be done"


def main() -> None:
    """Admit the tasks of a split."""
    own = [word for word in sys.argv[1:] if word.startswith("split=")]
    config = load_as(Config, [word for word in sys.argv[1:] if word not in own])
    split = own[0].partition("=")[2] if own else config.dataset.train_split
    with closing(OsworldDomain(config)) as domain:
        if not isinstance(domain.world, DesktopWorld) or (path := domain.world.admission.path) is None:
            raise TaskError(
                "admission is for real desktops with tasks of a folder or a function: set dataset.options.backend, and "
                "dataset.path or dataset.options.families"
            )
        domain.world.admission = Admission()  # all are tried, whatever is known of them
        domain.prepare([split])
        names = [task.payload["family"] for task in domain.tasks(split)]
        found = asyncio.run(tried(domain, names, lambda name, why: print(f"{name}: {why or 'admitted'}", flush=True)))
    before = {name: why for name, why in Admission.read(path).tried.items() if name.rpartition("/")[0] not in names}
    path.write_text(json.dumps(before | found, indent=1), encoding="utf-8")
    refused = sum(bool(why) for why in found.values())
    print(f"{refused} of {len(found)} verifiers of {len(names)} families are refused: {path}")


if __name__ == "__main__":
    run_guarded(main, "starts anew", versions=False)

"""Local desktops for tests: what must be installed, and one connected desktop."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from builders import config_of

from rlanything.domains.osworld.actions import Action
from rlanything.domains.osworld.desktops.backends import check_backend, local
from rlanything.domains.osworld.desktops.local import PREFIX, LocalDesktop
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError
from rlanything.types import Task

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
FAKE = Path(__file__).parent / "fake_guest.py"
HOME = str(ROOT / "data/osworld/desktop")
ORACLE = str(ROOT / "data/osworld/oracle")
SHARED = Path(os.environ.get("RLANYTHING_SHARED", ROOT.parent / "shared")) / "data" / "osworld"


def options(**changed: Any) -> OsworldOptions:
    """Options of local desktops."""
    return OsworldOptions(backend="local", home=HOME, oracle=ORACLE, **changed)


def endpoint_options(port: int, **changed) -> OsworldOptions:
    given = {"reset_command": ["true"], **changed}
    return OsworldOptions(backend="endpoint", endpoints=[f"127.0.0.1:{port}"], reset_s=5.0, **given)


def missing() -> str:
    """Why local desktops cannot be had here; "" if they can."""
    try:
        check_backend(options())
    except TaskError as error:
        return str(error)
    return ""


needs_desktops = pytest.mark.skipif(bool(why := missing()), reason=why)
needs_oracle = pytest.mark.skipif(not Path(ORACLE, "bin/python").exists(), reason="run scripts/osworld_oracle.sh")
needs_tasks = pytest.mark.skipif(not SHARED.is_dir(), reason=f"OSWorld's tasks are not at {SHARED}")


def desktop_domain(tmp_path: Path, path: str = "", **changed: Any) -> Any:
    """The domain with local desktops."""
    config = config_of("osworld", **options(**changed).model_dump())
    config.experiment.output_dir, config.dataset.path = str(tmp_path), path
    return make_domain(config)


def with_desktop(use: Callable[[LocalDesktop], Awaitable[T]], **changed: Any) -> T:
    """What `use` returns for a connected desktop."""

    async def run() -> T:
        desktop = local(options(**changed))()
        try:
            await desktop.boot()
            await desktop.connect()
            return await use(desktop)
        finally:
            await desktop.close()

    return asyncio.run(run())


@contextmanager
def few_desktops(tmp_path: Path) -> Iterator[Any]:
    """A domain of four generated tasks a split and one desktop, of which nothing is left at the end."""
    made = desktop_domain(tmp_path, size=4, eval_size=4, desktops=1, spares=0, infeasible=0.5)
    yield made
    made.close()
    assert not folders() and not isolated()


def folders() -> set[str]:
    """Folders of this process's desktops."""
    return {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}{os.getpid()}-*")}


def isolated() -> list[int]:
    """Processes of desktops below this one."""
    return [p.pid for p in psutil.Process().children(recursive=True) if p.name() in ("bwrap", "Xvfb")]


def play(domain: Any, task: Task, actions: Iterable[Action]) -> tuple[list[Any], Any]:
    """(observations, score) of an episode with these actions."""

    async def run() -> tuple[list[Any], Any]:
        env = domain.make_env(task)
        try:
            seen = [await env.reset()]
            for action in actions:
                seen.append(await env.step(action.to_json()))
            return seen, await env.score(seen[-1])
        finally:
            await env.close()

    return asyncio.run(run())

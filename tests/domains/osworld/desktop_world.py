"""Local desktops for tests: what must be installed, and one connected desktop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from builders import config_of

from rlanything.domains.osworld.desktops.backends import check_backend, local
from rlanything.domains.osworld.desktops.local import LocalDesktop
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.domains.registry import make_domain
from rlanything.errors import TaskError

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[3]
HOME = str(ROOT / "data/osworld/desktop")
ORACLE = str(ROOT / "data/osworld/oracle")
SHARED = Path(os.environ.get("RLANYTHING_SHARED", ROOT.parent / "shared")) / "data" / "osworld"


def options(**changed: Any) -> OsworldOptions:
    """Options of local desktops."""
    return OsworldOptions(backend="local", home=HOME, oracle=ORACLE, **changed)


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

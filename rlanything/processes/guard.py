"""What every entry point does: run, and turn an expected fault into one clear message and a non-zero exit."""

from __future__ import annotations

import errno
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from rich.console import Console
from rich.markup import escape

from rlanything.errors import ClearError
from rlanything.processes.interrupts import listen
from rlanything.processes.versions import check_versions, installed

REPEAT_S = 5.0  # a scheduler's SIGTERM may come twice: to all processes, and passed on by the launcher
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, a limit on files


def run_guarded(
    main: Callable[[], None], next_time: str = "goes on from the last checkpoint", versions: bool = True
) -> None:
    """Call `main`; exit 1 on an expected fault, 130 on Ctrl-C, 143 on SIGTERM; a bug shows its traceback.

    `next_time` tells the user who stopped it what the same command will do. `versions`: look at this machine's packages
    first; a `main` that others wait for does it itself.
    """
    console = Console(stderr=True, highlight=False)
    terminated: float | None = None  # when

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        if terminated is None or time.monotonic() > terminated + REPEAT_S:
            terminated = time.monotonic()
            signal.raise_signal(signal.SIGINT)  # which asyncio turns into a cancellation while an event loop runs

    listen()
    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would start with it ignored
    try:
        if versions:
            check_versions(installed(), "this machine")
        main()
    except ClearError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        where = escape(f" at {error.filename}" if error.filename else "")
        console.print(
            f"[red]error:[/red] cannot write{where}: {error.strerror}; free space and run the same command again",
            soft_wrap=True,
        )
        sys.exit(1)
    except Exception as error:
        if not _is_rays(error):
            raise
        console.print(
            f"[red]error:[/red] Ray could not go on ({type(error).__name__}): {escape(str(error).strip())}; a process "
            f"or a node of the run was lost, or its object store is full; the same command {next_time}",
            soft_wrap=True,
        )
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command {next_time}")
        sys.exit(130 if terminated is None else 143)


def _is_rays(error: Exception) -> bool:
    """Whether it is one of Ray's own, and not what a remote call raised, which is a bug."""
    exceptions: Any = sys.modules.get("ray.exceptions")  # without it there can be none, and importing it takes a second
    return (
        bool(exceptions) and isinstance(error, exceptions.RayError) and not isinstance(error, exceptions.RayTaskError)
    )

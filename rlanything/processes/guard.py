"""Runs an entry point: an expected fault becomes one clear message and a non-zero exit, a bug keeps its traceback."""

import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from rlanything.errors import ClearError
from rlanything.processes.interrupts import record_signals
from rlanything.processes.versions import check_versions, installed

REPEAT_S = 5.0  # SIGTERM may come twice: a scheduler signals all processes, and the launcher forwards its own
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space left, quota exceeded, file size limit exceeded


def run_guarded(
    main: Callable[[], None], next_time: str = "goes on from the last checkpoint", versions: bool = True
) -> None:
    """Run `main`. Exit with 1 on an expected fault, 130 on Ctrl-C, 143 on SIGTERM, 141 if nobody reads stdout any more.

    Expected faults are a ClearError, a full disk, a file that may not be used, and Ray's own errors. Any other
    exception is a bug and is raised. `next_time` tells a user who stopped the run what the same command will do.
    `versions` checks this machine's packages first; pass False if `main` checks them itself, so that it can tell other
    nodes.
    """
    console = Console(stderr=True, highlight=False)
    sigterm_at: float | None = None

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        nonlocal sigterm_at
        if sigterm_at is None or time.monotonic() > sigterm_at + REPEAT_S:
            sigterm_at = time.monotonic()
            signal.raise_signal(signal.SIGINT)  # asyncio turns SIGINT into a cancellation while an event loop runs

    record_signals()
    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with SIGINT ignored
    try:
        if versions:
            check_versions(installed(), "this machine")
        main()
        sys.stdout.flush()  # at the interpreter's end, a closed pipe could only be reported as a traceback
    except KeyboardInterrupt:
        console.print(f"stopped; the same command {next_time}")
        sys.exit(130 if sigterm_at is None else 143)
    except BrokenPipeError:
        if _stdout_is_read():
            raise
        exit_unread()
    except Exception as error:
        message = _message(error, next_time)
        if message is None:
            raise
        console.print(f"[red]error:[/red] {escape(message)}", soft_wrap=True)
        sys.exit(1)


def exit_unread() -> NoReturn:
    """Exit with 141, as a program that SIGPIPE ends, because nobody reads stdout any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in the buffer goes nowhere
    sys.exit(128 + signal.SIGPIPE)


def _stdout_is_read() -> bool:
    """False if stdout is a pipe whose reader has left, such as `head`."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return not any(state & select.POLLERR for _, state in poll.poll(0))


def _message(error: Exception, next_time: str) -> str | None:
    """The message for an expected fault; None for a bug."""
    if isinstance(error, ClearError):
        return str(error)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        where = f" at {error.filename}" if error.filename else ""
        return f"cannot write{where}: {error.strerror}; free space and run the same command again"
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: {error.strerror}; change its rights or owner, or name another place"
    ray: Any = sys.modules.get("ray.exceptions")  # importing Ray takes a second; before that, no error can be Ray's
    if ray and isinstance(error, ray.RayError) and not isinstance(error, ray.RayTaskError):  # a task's own is a bug
        return (
            f"Ray failed ({type(error).__name__}): {str(error).strip()}; a process or a node of the run was lost, or "
            f"its object store is full; the same command {next_time}"
        )
    return None

"""Runs a program in this very process, much as `python main.py` would. Standard library alone: see `runner`.

The modules that programs commonly use are imported here, once, before any program is forked. So is all else that is
the same for each: what a forked process writes for the first time, the kernel copies page by page, and that is most of
an execution's cost.
"""

from __future__ import annotations

import atexit
import bisect  # noqa: F401
import builtins
import collections  # noqa: F401
import contextlib
import copy  # noqa: F401
import datetime  # noqa: F401
import decimal  # noqa: F401
import fractions  # noqa: F401
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import io
import itertools  # noqa: F401
import linecache
import math  # noqa: F401
import operator  # noqa: F401
import os
import random
import re  # noqa: F401
import signal
import statistics  # noqa: F401
import string  # noqa: F401
import sys
import threading
import traceback
import types
import typing  # noqa: F401
from collections.abc import Callable
from typing import Any, NoReturn

FILE = "main.py"
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
MEMORY_EXIT = 79  # status of a program that ran out of memory
STREAMS = (
    (0, "stdin", "rb", "surrogateescape"),
    (1, "stdout", "wb", "surrogateescape"),
    (2, "stderr", "wb", "backslashreplace"),
)
OURS = "rlanything"
_open = open


def prepare() -> None:
    """Make of this process what a program's is to be: once, after `gc.freeze`, for `_finish` looks for the streams."""
    for name in [n for n in sys.modules if n.partition(".")[0] == OURS]:
        del sys.modules[name]
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv, sys.path = [FILE], [p for p in sys.path if p.startswith(sys.base_prefix) and "-packages" not in p]
    for fd, name, mode, errors in STREAMS:
        stream = io.TextIOWrapper(
            _open(fd, mode, closefd=False), encoding="utf-8", errors=errors, line_buffering=fd == 2
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    builtins.open = io.open = _open_standard


def run_program(source: bytes, end: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Never returns: the process ends as the program does. `end` is kept here, where programs do not replace it."""
    main = types.ModuleType("__main__")
    code = _guarded(_run, source, main)
    code = _guarded(threading._shutdown) or code  # type: ignore[attr-defined]  # waits for its threads
    code = _guarded(atexit._run_exitfuncs) or code
    code = _guarded(_finish, main) or code
    end(code)


def _run(source: bytes, main: types.ModuleType) -> None:
    random.seed(0)  # forked from one state, programs that do not seed would draw from the clock: verdicts must repeat
    main.__dict__.update(__builtins__=builtins, __file__=FILE)
    sys.modules["__main__"] = main
    linecache.cache[FILE] = (len(source), None, source.decode("utf-8", "replace").splitlines(keepends=True), FILE)
    exec(compile(source, FILE, "exec", dont_inherit=True), main.__dict__)


def _open_standard(file: Any, *args: Any, **kwargs: Any) -> Any:
    """As open, where there is no /proc for /dev/stdin to lead to."""
    return _open(os.dup(STANDARD[file]) if file in STANDARD else file, *args, **kwargs)


def _finish(main: types.ModuleType) -> None:
    """What the interpreter does at its end: flush what the program made its standard output and error, whatever they
    are; let go of everything; write what is still in buffers. Raises what the flushes raise."""
    try:
        for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    finally:
        _let_go(main)


def _let_go(main: types.ModuleType) -> None:
    main.__dict__.clear()
    gc.collect()
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter):
            with contextlib.suppress(ValueError):  # it is closed, or its buffer was given to another
                if thing.writable():
                    thing.flush()


def _guarded(call: object, *args: object) -> int:
    """The exit status of a call: what Python would end with."""
    try:
        call(*args)  # type: ignore[operator]
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        _complain(str(end.code) + "\n")
        return 1
    except MemoryError:
        _complain("MemoryError\n")
        return MEMORY_EXIT
    except BaseException as error:
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        _complain("".join(traceback.format_exception(error.with_traceback(inner and inner.tb_next))))
        return 1


def _complain(text: str) -> None:
    try:
        os.write(2, text.encode("utf-8", "backslashreplace")[-4000:])
    except OSError:  # standard error is full or closed
        pass

"""Runs a program in the current process, much as `python main.py` would. Standard library alone, as in `runner`.

The module imports what programs commonly use, once, before any program is forked. `prepare` likewise does everything
that is the same for all programs. A forked child copies every page that it is the first to write (copy on write), and
these copies are most of the cost of an execution.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import linecache
import os
import random
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

PRELOADED = (
    "bisect collections copy datetime decimal fractions functools heapq itertools math operator re statistics string "
    "typing"
).split()
FILE = "main.py"
STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
MEMORY_EXIT = 79  # exit status of a program that ran out of memory
STREAMS = (
    (0, "stdin", "rb", "surrogateescape"),
    (1, "stdout", "wb", "surrogateescape"),
    (2, "stderr", "wb", "backslashreplace"),
)
_open = open

for _name in PRELOADED:
    importlib.import_module(_name)


def prepare() -> None:
    """Give this process what `python main.py` would have: arguments, search path, streams, no trace of this package.

    Call it once, after `gc.freeze`: `_flush_files` finds the streams through the garbage collector, which would not
    list them if they were frozen.
    """
    for name in [n for n in sys.modules if n.partition(".")[0] == "rlanything"]:
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
    """Run a program and end the process as it ends.

    `end` is bound when the module is imported, so a program cannot replace it by patching `os._exit`.
    """
    main = types.ModuleType("__main__")
    code = _guarded(_run, source, main)
    code = _guarded(threading._shutdown) or code  # type: ignore[attr-defined]  # waits for the program's threads
    code = _guarded(atexit._run_exitfuncs) or code
    code = _guarded(_finish, main) or code
    end(code)


def _run(source: bytes, main: types.ModuleType) -> None:
    random.seed(0)  # a program that does not seed would otherwise differ from run to run, and so would its verdict
    main.__dict__.update(__builtins__=builtins, __file__=FILE)
    sys.modules["__main__"] = main
    linecache.cache[FILE] = (len(source), None, source.decode("utf-8", "replace").splitlines(keepends=True), FILE)
    exec(compile(source, FILE, "exec", dont_inherit=True), main.__dict__)


def _open_standard(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace `open`: /dev/stdin and the like are links into /proc, which does not exist here."""
    return _open(os.dup(STANDARD[file]) if file in STANDARD else file, *args, **kwargs)


def _finish(main: types.ModuleType) -> None:
    """Do what the interpreter does when it exits: flush the streams, drop the program's objects, flush its open files.

    The program may have replaced the streams by anything. Raises what their flushes raise.
    """
    try:
        for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    finally:
        main.__dict__.clear()
        gc.collect()
        _flush_files()


def _flush_files() -> None:
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter):
            with contextlib.suppress(ValueError):  # the file is closed, or its buffer was detached
                if thing.writable():
                    thing.flush()


def _guarded(call: Callable[..., object], *args: object) -> int:
    """Call a function and return the exit status that Python would end with."""
    try:
        call(*args)
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        _write_error(str(end.code) + "\n")
        return 1
    except MemoryError:
        _write_error("MemoryError\n")
        return MEMORY_EXIT
    except BaseException as error:
        inner = error.__traceback__.tb_next if error.__traceback__ else None
        _write_error("".join(traceback.format_exception(error.with_traceback(inner and inner.tb_next))))
        return 1


def _write_error(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error is full or closed
        os.write(2, text.encode("utf-8", "backslashreplace")[-4000:])

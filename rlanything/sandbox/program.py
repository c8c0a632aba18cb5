"""Runs a program in this process, as `python main.py` would. Standard library alone, as in `runner` and `threads`.

The module imports what programs commonly use, once, before any program is forked. `prepare` likewise does everything
that is the same for all programs. A forked child copies every page that it is the first to write (copy on write), and
these copies are most of the cost of an execution.
"""

import atexit
import builtins
import contextlib
import gc
import importlib
import io
import linecache
import os
import random
import re
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from typing import Any, NoReturn

from rlanything.sandbox.threads import use_threads_for_processes

PRELOADED = (
    "bisect collections copy datetime decimal fractions functools heapq itertools math operator re statistics string "
    "typing"
).split()
FILE = "main.py"
MEMORY_EXIT = 79  # exit status of a program that ran out of memory
STREAMS = (
    (0, "stdin", "r", "surrogateescape"),
    (1, "stdout", "w", "surrogateescape"),
    (2, "stderr", "w", "backslashreplace"),
)
ENVIRONMENT = {
    "HOME": "/tmp", "USER": "user", "LOGNAME": "user", "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
}  # fmt: skip
_DESCRIPTOR = re.compile(
    r"/dev/(?P<name>stdin|stdout|stderr)|/(?:dev|proc/self|proc/thread-self)/fd/(?P<number>\d{1,4})"
)
_open, _open_descriptor, _set_stack_size = open, os.open, threading.stack_size
_FileIO: Any = io.FileIO

for _name in PRELOADED:
    importlib.import_module(_name)


def preload(folder: str, modules: Sequence[str]) -> None:
    """Let programs find the standard library and the packages in `folder` ("": none); import `modules` of these.

    Raises ImportError, which names the module.
    """
    library = [path for path in sys.path if path.startswith(sys.base_prefix) and "-packages" not in path]
    sys.path = [*library, folder] if folder else library
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a package may raise anything
            raise ImportError(
                f"sandbox.packages: {module} cannot be imported in the sandbox ({error}); leave it out"
            ) from error


def prepare() -> None:
    """Give this process what `python main.py` would have: arguments, environment, streams, no trace of this package.

    Call it once, after `gc.freeze`: `_flush_files` finds the streams through the garbage collector, which would not
    list them if they were frozen.
    """
    for name in [n for n in sys.modules if n.partition(".")[0] == "rlanything"]:
        del sys.modules[name]
    os.environ.clear()
    os.environ |= ENVIRONMENT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [FILE]
    sys.set_int_max_str_digits(0)  # judges have older Pythons, or lift the limit
    for fd, name, mode, errors in STREAMS:
        stream = _standard_stream(fd, f"<{name}>", mode, errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    builtins.open = io.open = _named_as(_open, _open_standard)
    os.open = _named_as(_open_descriptor, _open_standard_descriptor)
    io.FileIO = _named_as(_FileIO, FileIO)  # type: ignore[misc]
    threading.stack_size = _named_as(_set_stack_size, _stack_size)
    use_threads_for_processes()


def _standard_stream(fd: int, name: str, mode: str, errors: str) -> io.TextIOWrapper:
    """Make a standard stream with the attributes that the interpreter gives it (create_stdio in pylifecycle.c)."""
    buffer: Any = _open(fd, f"{mode}b", closefd=False)
    buffer.raw.name = name
    stream = io.TextIOWrapper(buffer, encoding="utf-8", errors=errors, newline="\n", line_buffering=fd == 2)
    stream.mode = mode  # type: ignore[misc]
    return stream


def run_program(source: bytes, end: Callable[[int], NoReturn] = os._exit) -> NoReturn:
    """Run a program and end the process as it ends.

    `end` is bound when the module is imported, so a program cannot replace it by patching `os._exit`.
    """
    holder = [types.ModuleType("__main__")]  # a list, which `_finish` empties: no frame here may hold the module
    code = _guarded(_run, source, holder)
    code = _guarded(threading._shutdown) or code  # type: ignore[attr-defined]  # waits for the program's threads
    code = _guarded(atexit._run_exitfuncs) or code
    code = _guarded(_finish, holder) or code
    end(code)


def _run(source: bytes, holder: list[types.ModuleType]) -> None:
    random.seed(0)  # a program that does not seed would otherwise differ from run to run, and so would its verdict
    path, main = os.path.abspath(FILE), holder[0]
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__builtins__=builtins, __file__=path, __loader__=loader, __cached__=None, __annotations__={})
    sys.path.insert(0, os.getcwd())
    sys.modules["__main__"] = main
    lines = source.decode("utf-8", "replace").splitlines(keepends=True)
    linecache.cache[FILE] = linecache.cache[path] = (len(source), None, lines, FILE)
    exec(compile(source, FILE, "exec", dont_inherit=True), main.__dict__)


def _named_as(original: Any, replacement: Any) -> Any:
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(replacement, name, getattr(original, name))
    return replacement


def _open_standard(file: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace `open`. /dev/stdin and the like are links into /proc, which does not exist here.

    The program's own file is written when the program asks for it: few do.
    """
    if (path := _text(file)) and os.path.abspath(path) == os.path.abspath(FILE) and not os.path.exists(FILE):
        with _open(FILE, "w", encoding="utf-8") as own:
            own.writelines(linecache.getlines(FILE))
    return _open(_duplicate(file, file), *args, **kwargs)


def _open_standard_descriptor(path: Any, *args: Any, **kwargs: Any) -> int:
    """Replace `os.open` likewise."""
    fd = _duplicate(path, None)
    return _open_descriptor(path, *args, **kwargs) if fd is None else fd


class _FileIOType(type):
    """Takes the interpreter's own raw files, such as those of the standard streams, for instances of `FileIO` too."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _FileIO) if cls is FileIO else super().__instancecheck__(thing)


class FileIO(_FileIO, metaclass=_FileIOType):
    """Replaces `io.FileIO` likewise."""

    def __init__(self, file: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(_duplicate(file, file), *args, **kwargs)


def _duplicate(path: Any, otherwise: Any) -> Any:
    """Return a duplicate of the open descriptor that a path names, or `otherwise` if it names none."""
    found = _DESCRIPTOR.fullmatch(_text(path))
    if found is None:
        return otherwise
    return os.dup(("stdin", "stdout", "stderr").index(found["name"]) if found["name"] else int(found["number"]))


def _text(path: Any) -> str:
    """A path as text, "" if it is a descriptor."""
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


def _stack_size(size: int = 0) -> int:
    """Replace `threading.stack_size`: make room for a large stack, most of which a program never touches.

    The hard limit of the address space is above the soft one by as much as the largest usual stacks need. What the
    program really used is measured when it has ended.
    """
    if size:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return _set_stack_size(size)


def _finish(holder: list[types.ModuleType]) -> None:
    """Do what the interpreter does when it exits: flush the streams, drop the program's objects, flush its open files.

    The program may have replaced the streams by anything. Raises what their flushes raise. The program's objects still
    find its globals when they end (PEP 442).
    """
    try:
        _flush_streams()
    finally:
        _flush_files()  # the collector may end a file's buffer before the text in front of it
        for name in ("stdin", "stdout", "stderr"):  # what ends later writes to the interpreter's own streams
            setattr(sys, name, getattr(sys, f"__{name}__", None))
        sys.modules.pop("__main__", None)
        holder.clear()
        gc.collect()
        with contextlib.suppress(ValueError):  # the program has detached a buffer
            _flush_streams()
        _flush_files()


def _flush_streams() -> None:
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


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
        return _exit_status(end)
    except MemoryError:
        _write_error("MemoryError\n")
        return MEMORY_EXIT
    except BaseException as error:
        return _report(error)


def _exit_status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        code = end.code or 0
        return (code if -(2**63) <= code < 2**63 else -1) & 0xFF  # as handle_system_exit in pythonrun.c
    _write_error(str(end.code) + "\n")
    return 1


def _report(error: BaseException) -> int:
    """Report an uncaught exception, by the program's own `sys.excepthook` if it has one. Returns the exit status."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    place = inner and inner.tb_next
    if sys.excepthook is not sys.__excepthook__:
        try:
            sys.excepthook(type(error), error, place)
            return 1
        except SystemExit as end:
            return _exit_status(end)
        except BaseException as other:
            told = "".join(traceback.format_exception(other))
            _write_error(f"Error in sys.excepthook:\n{told}\nOriginal exception was:\n")
    _write_error("".join(traceback.format_exception(error.with_traceback(place))))
    return 1


def _write_error(text: str) -> None:
    with contextlib.suppress(OSError):  # standard error is full or closed
        os.write(2, text.encode("utf-8", "backslashreplace")[-4000:])

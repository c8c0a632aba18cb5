"""The runner: a process that was isolated once, and forks a child for each program that it is given.

It imports the standard library alone and never runs a program itself, so what it forks is a fresh interpreter, warm and
a few megabytes small. A program is the first process of a process namespace of its own: it sees nobody, and when it
ends the kernel ends whatever it left behind; signals of its own that it does not handle do nothing to it. Source, input
and output are memory files of who asks: nobody pumps, so no output is too large to be read, and the runner never holds
what it could leave for a later program.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlanything.processes.orphans import adopt_orphans, die_with_parent
from rlanything.sandbox import kernel
from rlanything.sandbox.program import MEMORY_EXIT, prepare, run_program
from rlanything.sandbox.protocol import MIB, Limits, Verdict, receive, send

SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")  # shared libraries of the interpreter's modules
DEVICES = ("null", "zero", "random", "urandom")
NOBODY, INSIDE = 65534, 1000  # whom a runner of root becomes; whom a program sees itself as
NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWPID
)
PER_EXECUTION = kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
OWN_PROCESSES = 2  # of the runner, which count among the user's
MAX_WALL_S = 86_400.0  # that poll takes


def serve(fd: int) -> None:
    """Isolate this process, say whether it worked, then execute what comes until the other side has gone."""
    connection = socket.socket(fileno=fd)
    settings = receive(connection)
    if settings is None:
        return
    isolated, rules = settings[0]["isolated"], bytes.fromhex(settings[0]["rules"])
    refused = kernel.SystemCallFilter(rules) if rules else None
    try:
        if isolated:
            _isolate()
        else:
            adopt_orphans()
        desk = Desk(isolated)
    except OSError as error:
        return send(connection, {"error": str(error)})
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    prepare()
    send(connection, {"error": ""})
    try:
        while (request := receive(connection)) is not None:
            header, files = request
            try:
                outcome = _execute(files, Limits(**header), desk, refused, connection)
            except OSError as error:  # no process or memory to be had: not the program's fault
                outcome = {"verdict": Verdict.SANDBOX_ERROR, "detail": str(error)}
            finally:
                for file in files:
                    os.close(file)
            send(connection, outcome)
    except ConnectionError:  # the other side was killed meanwhile
        return
    finally:
        desk.remove()


class Desk:
    """The folder in which programs work: clean for each, and without isolation at least one of its own."""

    def __init__(self, isolated: bool) -> None:
        self.isolated, self.files_mb = isolated, 0
        self.path = Path("/tmp") if isolated else Path(tempfile.mkdtemp(prefix="sandbox_"))
        self._seen = (0, 0)

    def clean(self, files_mb: int) -> None:
        """Make it as new, if the last program touched it."""
        if self.files_mb == files_mb and self._state() == self._seen and not os.listdir(self.path):
            return
        if self.isolated:
            if self.files_mb:
                kernel.unmount(self.path)
            options = f"size={files_mb}m,nr_inodes=4096,mode=700,uid={INSIDE},gid={INSIDE}"
            kernel.mount("tmpfs", self.path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        else:
            self.remove()
            self.path.mkdir()
        self.files_mb, self._seen = files_mb, self._state()

    def _state(self) -> tuple[int, int]:
        found = os.stat(self.path)
        return found.st_ctime_ns, found.st_mode

    def remove(self) -> None:
        """Leave nothing on the host."""
        if not self.isolated:
            shutil.rmtree(self.path, ignore_errors=True)


def _isolate() -> None:
    """Return in a process that has its own namespaces, no network, and a root in which little is and nothing can be
    changed. The processes that it came from wait for it, outside."""
    die_with_parent()
    outside = NOBODY if os.geteuid() == 0 else os.geteuid(), NOBODY if os.geteuid() == 0 else os.getegid()
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        _map_user(child, ready[0], mapped[1], outside)
        _end_as(child)
    die_with_parent()
    libraries, own = _libraries(), Path(f"{sys.base_prefix}/lib")
    try:
        if Path("/tmp") in own.parents:
            raise OSError(f"the interpreter is in {own}, and /tmp is the programs' own: use one that is elsewhere")
        os.chdir(own)  # "." is still allowed below: what its parents want may be a privilege that is left behind here
        kernel.unshare(NAMESPACES)
    except OSError as error:
        os.write(ready[1], str(error).encode())
        os._exit(0)
    os.write(ready[1], b"ok")
    os.read(mapped[0], 1)
    # Now: INSIDE may not see their parents, and what was opened before belongs to another mount namespace.
    shown = {f: os.open("." if f == own else f, os.O_PATH | os.O_NOFOLLOW) for f in libraries}
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)
    _build_root(Path("/tmp"), shown)  # any folder: it is covered in the child's mount namespace alone
    for fd in (*ready, *mapped, *shown.values()):
        os.close(fd)
    die_with_parent()  # forgotten when the user changed
    inner = os.fork()  # the first process of the new process namespace
    if inner:
        _end_as(inner)
    die_with_parent()
    kernel.allow_no_new_privileges()


def _map_user(child: int, ready: int, mapped: int, outside: tuple[int, int]) -> None:
    """Once the child has its user namespace, say who it is outside of it. Raises OSError with its reason."""
    said = os.read(ready, 1000).decode()
    if said != "ok":
        raise OSError(said or "the runner ended while it made its namespaces")
    Path(f"/proc/{child}/setgroups").write_text("deny")
    for kind, own in zip(("uid", "gid"), outside, strict=True):
        Path(f"/proc/{child}/{kind}_map").write_text(f"{INSIDE} {own} 1")
    os.write(mapped, b"1")


def _libraries() -> list[Path]:
    """The folders that the interpreter needs, without those that lie in one another."""
    found = [Path(folder) for folder in (*SYSTEM, f"{sys.base_prefix}/lib") if Path(folder).is_dir()]
    return [f for f in found if f.is_symlink() or not any(other in f.parents for other in found)]


def _build_root(root: Path, shown: dict[Path, int]) -> None:
    """The interpreter's library, the system's, four devices and an empty /tmp; nothing of it can be written."""
    kernel.mount("none", Path("/"), "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k,mode=755")
    for folder, fd in shown.items():
        target = root / str(folder)[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            target.symlink_to(os.readlink("", dir_fd=fd))
        else:
            target.mkdir()
            kernel.bind_read_only(f"/proc/self/fd/{fd}", target)
        for way in target.relative_to(root).parents[:-1]:
            (root / way).chmod(0o111)  # to go through, not to look at: whose home it is below is nobody's business
    (root / "dev").mkdir()
    for device in DEVICES:
        (root / "dev" / device).touch()
        kernel.mount(f"/dev/{device}", root / "dev" / device, "", kernel.MS_BIND)
        kernel.make_read_only(root / "dev" / device, device=True)
    (root / "tmp").mkdir()
    kernel.enter_root(root)
    kernel.make_read_only(Path("/"))


def _end_as(child: int) -> NoReturn:
    """Wait for a child and end."""
    os.waitpid(child, 0)
    os._exit(0)


def _execute(
    files: Sequence[int],
    limits: Limits,
    desk: Desk,
    refused: kernel.SystemCallFilter | None,
    asker: socket.socket,
) -> dict[str, Any]:
    """Run a program: `files` are its source, and what its standard input, output and error are to be."""
    desk.clean(limits.files_mb)
    broken, breaks = os.pipe()
    try:
        started = time.monotonic()
        program = kernel.fork_into(PER_EXECUTION) if desk.isolated else os.fork()
        if not program:
            _become(files, breaks, limits, desk, refused)
        in_time, status, usage = _wait(program, limits.wall_s, desk.isolated, asker)
        wall = time.monotonic() - started
        os.set_blocking(broken, False)
        with contextlib.suppress(BlockingIOError):  # as it should be: nothing was said
            return {"verdict": Verdict.SANDBOX_ERROR, "detail": os.read(broken, 1000).decode()}
        written = max(os.fstat(file).st_size for file in files[2:])
        return _judge(in_time, status, usage, limits, written, desk.isolated) | {"wall_s": wall}
    finally:
        os.close(broken)
        os.close(breaks)


def _wait(
    program: int, wall_s: float, isolated: bool, asker: socket.socket
) -> tuple[bool, int, resource.struct_rusage]:
    """Wait until a program and all that it started have ended: whether in time, its wait status, what it used. Where
    who asked has gone, nobody waits for it: it is ended."""
    in_time = False
    try:
        pidfd = os.pidfd_open(program)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(asker, 0)  # for its end alone
        in_time = any(fd == pidfd for fd, _ in poll.poll(min(wall_s, MAX_WALL_S) * 1000))
        os.close(pidfd)
    finally:
        if not in_time:
            os.kill(program, signal.SIGKILL)
        _, status, usage = os.wait4(program, 0)  # of a process namespace: returns when its last process is gone
        while not isolated and (left := _children()):  # orphans come to the runner, generation by generation
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
    return in_time, status, usage


def _children() -> list[int]:
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _judge(
    in_time: bool, status: int, usage: resource.struct_rusage, limits: Limits, written: int, isolated: bool
) -> dict[str, Any]:
    code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
    found: dict[str, Any] = {"exit_code": code, "seconds": seconds, "memory_mb": usage.ru_maxrss / 1024}
    if not in_time or seconds > limits.time_s:
        verdict = Verdict.TIME_LIMIT
    elif isolated and code == -signal.SIGKILL:  # the first process of its namespace cannot do that to itself
        verdict = Verdict.SANDBOX_ERROR
        found["detail"] = "it was killed from outside, perhaps for want of memory"
    elif written > limits.output_mb * MIB:
        verdict = Verdict.OUTPUT_LIMIT
    elif code == MEMORY_EXIT or (code < 0 and usage.ru_maxrss > 0.9 * limits.memory_mb * 1024):
        verdict = Verdict.MEMORY_LIMIT
    else:
        verdict = Verdict.OK if code == 0 else Verdict.RUNTIME_ERROR
    return found | {"verdict": verdict}


def _become(
    files: Sequence[int], breaks: int, limits: Limits, desk: Desk, refused: kernel.SystemCallFilter | None
) -> NoReturn:
    """In the child: be the program."""
    try:
        os.setsid()  # else its process group would be the runner's too
        source = b"".join(iter(lambda: os.read(files[0], MIB), b""))
        for standard, file in enumerate(files[1:]):
            os.dup2(file, standard)
        _restrict(limits, desk, refused)
    except BaseException as error:  # it must never return into the runner's loop
        os.write(breaks, f"the program could not be started: {error!r}".encode())
        os._exit(1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    run_program(source)


def _restrict(limits: Limits, desk: Desk, refused: kernel.SystemCallFilter | None) -> None:
    """Take from this process all that a program does not need."""
    os.chdir(desk.path)
    size = int(limits.time_s) + 1
    for what, value in (
        (resource.RLIMIT_CPU, size),
        (resource.RLIMIT_AS, limits.memory_mb * MIB),
        (resource.RLIMIT_FSIZE, limits.output_mb * MIB + 1),  # one byte, by which more is told from as much
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, min(64, limits.memory_mb) * MIB),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
        *([(resource.RLIMIT_NPROC, OWN_PROCESSES + limits.num_thread)] if desk.isolated else []),
    ):
        resource.setrlimit(what, (value, value))
    if desk.isolated:
        kernel.drop_privileges()
    if refused:
        refused.apply()

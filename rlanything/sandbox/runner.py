"""The runner: a process that isolates itself once, then forks a child for every program that it is given.

A runner imports the standard library alone and never runs a program itself. So each fork is a fresh, warm interpreter
of a few megabytes. A program is process 1 of a PID namespace of its own: it sees no other process, the kernel ends
everything that it leaves behind, and signals that it sends itself and does not handle do nothing. Source, input and
output are memory files (memfd) of the caller. No pipe has to be read while a program runs, output can be of any size,
and the runner holds nothing that a later program could find.
"""

import contextlib
import gc
import os
import resource
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlanything.processes.orphans import adopt_orphans
from rlanything.sandbox import kernel
from rlanything.sandbox.isolation import INSIDE, PACKAGES, isolate
from rlanything.sandbox.program import MEMORY_EXIT, preload, prepare, run_program
from rlanything.sandbox.protocol import MIB, Limits, Verdict, receive, send

PER_EXECUTION = kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC
OWN_PROCESSES = 2  # processes of the runner itself, which RLIMIT_NPROC counts too
STACK_ROOM_MB = 1024  # address space beyond the limit of memory, for the stacks of threads (`program._stack_size`)
MAX_WALL_S = 86_400.0  # poll(2) takes milliseconds as a 32-bit integer


def serve(fd: int) -> None:
    """Isolate this process, report whether that worked, then execute programs until the pool closes the connection.

    `fd` is this side's end of the connection.
    """
    caller = socket.socket(fileno=fd)
    settings = receive(caller)
    if settings is None:
        return
    isolated, seccomp_filter = settings[0]["isolated"], bytes.fromhex(settings[0]["filter"])
    folder, modules = settings[0]["packages"], settings[0]["modules"]
    processes = os.open("/proc", os.O_PATH)  # programs will have none
    try:
        if isolated:
            isolate(folder)
        else:
            adopt_orphans()
        before = _address_space_mb(processes)
        preload(PACKAGES if isolated and folder else folder, modules)
        packages_mb = _address_space_mb(processes) - before
        os.close(processes)
        seccomp = kernel.SystemCallFilter(seccomp_filter) if seccomp_filter else None
        runner = Runner(caller, isolated, seccomp, packages_mb)
    except ImportError as error:
        return send(caller, {"error": "", "packages_error": str(error)})
    except OSError as error:
        return send(caller, {"error": str(error)})
    gc.collect()
    gc.freeze()  # a garbage collection in a child would otherwise write to, and so copy, every page
    prepare()
    send(caller, {"error": ""})
    try:
        while (request := receive(caller)) is not None:
            header, files = request
            try:
                result = runner.execute(files, Limits(**header))
            except OSError as error:  # the kernel refused a process or memory, which is not the program's fault
                result = {"verdict": Verdict.SANDBOX_ERROR, "detail": str(error)}
            finally:
                for file in files:
                    os.close(file)
            send(caller, result)
    except ConnectionError:  # the caller was killed meanwhile
        return
    finally:
        runner.close()


def _address_space_mb(processes: int) -> int:
    """This process's address space [MiB]; `processes` is an open /proc (proc_pid_statm(5))."""
    with open(os.open("self/statm", os.O_RDONLY, dir_fd=processes)) as file:
        return int(file.read().split()[0]) * resource.getpagesize() // MIB


class Runner:
    """Executes programs for one caller, in one folder: /tmp of the isolated root, or a temporary one on the host.

    `packages_mb` is the memory of the preloaded packages [MiB], which does not count as the programs'.
    """

    def __init__(
        self,
        caller: socket.socket,
        isolated: bool,
        seccomp_filter: kernel.SystemCallFilter | None,
        packages_mb: int,
    ) -> None:
        self.caller, self.isolated, self.seccomp_filter = caller, isolated, seccomp_filter
        self.packages_mb = packages_mb
        self.folder = Path("/tmp") if isolated else Path(tempfile.mkdtemp(prefix="sandbox_"))
        self._files_mb, self._clean_state = 0, (0, 0)

    def close(self) -> None:
        """Remove the folder if it is on the host."""
        if not self.isolated:
            shutil.rmtree(self.folder, ignore_errors=True)

    def execute(self, files: Sequence[int], limits: Limits) -> dict[str, Any]:
        """Run a program. `files` are its source and what becomes its standard input, output and error.

        Returns the fields of its Execution except for the output. Raises OSError if the kernel refuses a process.
        """
        self._clean_folder(limits.files_mb)
        failure, report_failure = os.pipe()
        try:
            started = time.monotonic()
            program = kernel.fork_into(PER_EXECUTION) if self.isolated else os.fork()
            if not program:
                self._become_program(files, report_failure, limits)
            in_time, status, usage = self._wait(program, limits.wall_s)
            wall = time.monotonic() - started
            os.set_blocking(failure, False)
            with contextlib.suppress(BlockingIOError):  # an empty pipe means that the program was started
                return {"verdict": Verdict.SANDBOX_ERROR, "detail": os.read(failure, 1000).decode()}
            written = max(os.fstat(file).st_size for file in files[2:])
            return self._judge(in_time, status, usage, limits, written) | {"wall_s": wall}
        finally:
            os.close(failure)
            os.close(report_failure)

    def _clean_folder(self, files_mb: int) -> None:
        """Empty the folder and let it hold `files_mb` [MiB]. Does nothing if the last program left it untouched."""
        if self._files_mb == files_mb and self._state() == self._clean_state and not os.listdir(self.folder):
            return
        if self.isolated:
            if self._files_mb:
                kernel.unmount(self.folder)
            options = f"size={files_mb}m,nr_inodes=4096,mode=700,uid={INSIDE},gid={INSIDE}"
            kernel.mount("tmpfs", self.folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        else:
            self.close()
            self.folder.mkdir()
        self._files_mb, self._clean_state = files_mb, self._state()

    def _state(self) -> tuple[int, int]:
        status = os.stat(self.folder)
        return status.st_ctime_ns, status.st_mode

    def _wait(self, program: int, wall_s: float) -> tuple[bool, int, resource.struct_rusage]:
        """Wait until a program and everything that it started have ended, and kill them after `wall_s` [s].

        Returns whether it ended in time, its wait status and its resource usage. A program whose caller has closed
        the connection is killed at once.
        """
        in_time = False
        try:
            pidfd = os.pidfd_open(program)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            poll.register(self.caller, 0)  # reports only that the connection was closed
            in_time = any(fd == pidfd for fd, _ in poll.poll(min(wall_s, MAX_WALL_S) * 1000))
            os.close(pidfd)
        finally:
            if not in_time:
                os.kill(program, signal.SIGKILL)
            _, status, usage = os.wait4(program, 0)  # process 1 of a namespace is reaped only after all its processes
            while not self.isolated and (orphans := _children()):  # adopted, one generation at a time
                for pid in orphans:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        return in_time, status, usage

    def _judge(
        self, in_time: bool, status: int, usage: resource.struct_rusage, limits: Limits, written: int
    ) -> dict[str, Any]:
        """Return verdict and measurements of an Execution. `written` is the size of the larger output [B]."""
        code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        memory_kb = (limits.memory_mb + self.packages_mb) * 1024
        result: dict[str, Any] = {"exit_code": code, "seconds": seconds, "memory_mb": usage.ru_maxrss / 1024}
        if not in_time or seconds > limits.time_s:
            verdict = Verdict.TIME_LIMIT
        elif self.isolated and code == -signal.SIGKILL:  # process 1 cannot kill itself
            verdict = Verdict.SANDBOX_ERROR
            result["detail"] = "the program was killed from outside, perhaps because the machine ran out of memory"
        elif written > limits.output_mb * MIB:
            verdict = Verdict.OUTPUT_LIMIT
        elif code == MEMORY_EXIT or usage.ru_maxrss > (0.9 if code < 0 else 1.0) * memory_kb:
            verdict = Verdict.MEMORY_LIMIT
        else:
            verdict = Verdict.OK if code == 0 else Verdict.RUNTIME_ERROR
        return result | {"verdict": verdict}

    def _become_program(self, files: Sequence[int], report_failure: int, limits: Limits) -> NoReturn:
        """Turn the forked child into the program."""
        try:
            os.setsid()  # its process group is otherwise the runner's
            source = b"".join(iter(lambda: os.read(files[0], MIB), b""))
            for standard, file in enumerate(files[1:]):
                os.dup2(file, standard)
            self._restrict(limits)
        except BaseException as error:  # the child must never return into the runner's loop
            os.write(report_failure, f"the program could not be started: {error!r}".encode())
            os._exit(1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        run_program(source)

    def _restrict(self, limits: Limits) -> None:
        """Apply the resource limits (setrlimit(2)), drop all capabilities and apply the seccomp filter."""
        os.chdir(self.folder)
        memory, stack = (limits.memory_mb + self.packages_mb) * MIB, min(64, limits.memory_mb) * MIB
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory + STACK_ROOM_MB * MIB))
        # Programs lift the limit of their stack. What it holds counts as address space.
        resource.setrlimit(resource.RLIMIT_STACK, (stack, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        for kind, value in (
            (resource.RLIMIT_CPU, int(limits.time_s) + 1),
            (resource.RLIMIT_FSIZE, limits.output_mb * MIB + 1),  # one byte more, to tell too much from just enough
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, 64),
            (resource.RLIMIT_NICE, 0),
            (resource.RLIMIT_RTPRIO, 0),
            *([(resource.RLIMIT_NPROC, OWN_PROCESSES + limits.num_thread)] if self.isolated else []),
        ):
            resource.setrlimit(kind, (value, value))
        if self.isolated:
            kernel.drop_privileges()
        if self.seccomp_filter:
            self.seccomp_filter.apply()


def _children() -> list[int]:
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

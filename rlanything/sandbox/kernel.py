"""The Linux system calls that isolate a process and that Python's `os` module lacks.

Standard library alone, because the runner imports it. Every function raises OSError if its call fails. Sources:
namespaces(7), clone(2), mount(2), mount_setattr(2), pivot_root(2), capabilities(7), seccomp(2).
"""

import ctypes
import os
import platform
import signal
from pathlib import Path

from rlanything.processes.orphans import check_call, libc, prctl

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_THREAD = 0x10000000, 0x20000000, 0x40000000, 0x00010000
ALL_NAMESPACES = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWPID
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH, _AT_RECURSIVE, _AT_FDCWD = 2, 0x8000, -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER, _CAP_VERSION_3 = 2, 0x20080522
_CALLS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}
_MOUNT_SETATTR = 442  # the same number on every architecture
SUPPORTED = platform.system() == "Linux" and platform.machine() in _CALLS

_no_capabilities = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0), (ctypes.c_uint32 * 6)()


def _syscall(name: str, *args: int | bytes | ctypes.c_void_p) -> int:
    number = _MOUNT_SETATTR if name == "mount_setattr" else _CALLS[platform.machine()][name]
    return check_call(libc.syscall(*(ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *args))), name)


def unshare(flags: int) -> None:
    """Move this process into new namespaces. For CLONE_NEWPID its later children move instead."""
    check_call(libc.unshare(flags), "unshare")


def fork_into(flags: int) -> int:
    """Fork like os.fork, with the child in new namespaces. The caller must have a single thread.

    In a new PID namespace the child is process 1: a signal from inside the namespace that it does not handle does
    nothing to it, not even SIGKILL (pid_namespaces(7)).
    """
    return _syscall("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    check_call(libc.mount(source.encode(), bytes(target), kind.encode(), flags, options.encode()), f"mount {target}")


def unmount(target: Path) -> None:
    """Unmount what is mounted at `target`, even if it is in use (MNT_DETACH)."""
    check_call(libc.umount2(bytes(target), _MNT_DETACH), f"unmount {target}")


def bind_read_only(source: str, target: Path) -> None:
    """Bind `source`, with everything mounted below it, to `target` and make it read-only."""
    mount(source, target, "", MS_BIND | MS_REC)
    make_read_only(target, _AT_RECURSIVE)


def make_read_only(target: Path, flags: int = 0, device: bool = False) -> None:
    """Make the mount at `target` read-only. `device` keeps a device node usable. Needs Linux 5.12 or later."""
    attributes = (ctypes.c_uint64 * 4)(_ATTR_RDONLY | _ATTR_NOSUID | (0 if device else _ATTR_NODEV))
    pointer = ctypes.cast(attributes, ctypes.c_void_p)
    _syscall("mount_setattr", _AT_FDCWD, bytes(target), flags, pointer, ctypes.sizeof(attributes))


def enter_root(root: Path) -> None:
    """Make `root` the root of this process's mount namespace with pivot_root, and detach the old root."""
    os.chdir(root)
    _syscall("pivot_root", b".", b".")  # this stacks the old root on top of the new one, so that "." unmounts the old
    unmount(Path("."))
    os.chdir("/")


def allow_no_new_privileges() -> None:
    """Set no_new_privs and empty the capability bounding set: no descendant can gain privileges, not even by exec."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for capability in range(64):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            break  # past the last capability that the kernel has


def drop_privileges() -> None:
    """Give up all capabilities with capset(2)."""
    check_call(libc.capset(*_no_capabilities), "capset")


class SystemCallFilter(ctypes.Structure):
    """A seccomp filter as the kernel takes it (struct sock_fprog), made from what `seccomp.compile_filter` returns."""

    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    def __init__(self, program: bytes) -> None:
        super().__init__(len(program) // 8, program)

    def apply(self) -> None:
        """Apply the filter to this process and all its later children. It cannot be removed."""
        prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(self))

"""Isolates a process: namespaces, a mapped user, and a small read-only root. Standard library alone, as in `runner`.

Sources: namespaces(7), user_namespaces(7), pid_namespaces(7), mount_namespaces(7).
"""

import os
import stat
import sys
from pathlib import Path
from typing import NoReturn

from rlanything.processes.orphans import die_with_parent
from rlanything.sandbox import kernel

SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")  # shared libraries that the interpreter's modules load
ZONES = "/usr/share/zoneinfo"  # what the module zoneinfo reads
PACKAGES = "/packages"  # where the root holds the packages that programs may import
DEVICES = ("null", "zero", "random", "urandom")
NOBODY = 65534  # the user that programs are on the host, if the runner was started by root
INSIDE = 1000  # the user that a program sees itself as


def isolate(packages: str = "") -> None:
    """Return in a descendant process that has its own namespaces, no network, and a small read-only root.

    The root holds the folder `packages` (if it is not "") as PACKAGES.

    The chain is: this process, which stays outside and maps the user; a child, which makes the namespaces and the
    root; a grandchild, which is process 1 of the PID namespace and returns. Each waits for the next.
    """
    die_with_parent()
    outside = (NOBODY, NOBODY) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    ready, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        _map_user(child, ready[0], mapped[1], outside)
        _exit_after(child)
    die_with_parent()
    libraries, own = _libraries(), Path(f"{sys.base_prefix}/lib")
    try:
        if Path("/tmp") in own.parents:
            raise OSError(f"the interpreter is in {own}, but programs get a /tmp of their own; install it elsewhere")
        # The parents of `own` may be closed to INSIDE (a home folder, say). Being there already needs no permission.
        os.chdir(own)
        kernel.unshare(kernel.ALL_NAMESPACES)
    except OSError as error:
        os.write(ready[1], str(error).encode())
        os._exit(0)
    os.write(ready[1], b"ok")
    os.read(mapped[0], 1)
    # A bind mount needs a source in this mount namespace, so folders are opened after unshare, but before setresuid.
    sources = {f: os.open("." if f == own else f, os.O_PATH | os.O_NOFOLLOW) for f in libraries}
    if packages:
        sources[Path(PACKAGES)] = os.open(packages, os.O_PATH)
    os.setresgid(INSIDE, INSIDE, INSIDE)
    os.setresuid(INSIDE, INSIDE, INSIDE)
    _build_root(Path("/tmp"), sources)  # mounting over /tmp hides it in this mount namespace only
    for fd in (*ready, *mapped, *sources.values()):
        os.close(fd)
    die_with_parent()  # again, because the kernel resets PDEATHSIG when a process changes its user
    inner = os.fork()
    if inner:
        _exit_after(inner)
    die_with_parent()
    kernel.allow_no_new_privileges()


def _map_user(child: int, ready: int, mapped: int, outside: tuple[int, int]) -> None:
    """Wait for the child's user namespace, then map INSIDE to the user and group `outside` (user_namespaces(7)).

    Raises OSError with the child's reason if it could not make its namespaces.
    """
    answer = os.read(ready, 1000).decode()
    if answer != "ok":
        raise OSError(answer or "the runner process ended while it made its namespaces")
    Path(f"/proc/{child}/setgroups").write_text("deny")
    for kind, own in zip(("uid", "gid"), outside, strict=True):
        Path(f"/proc/{child}/{kind}_map").write_text(f"{INSIDE} {own} 1")
    os.write(mapped, b"1")


def _libraries() -> list[Path]:
    """List the folders that programs need, without those that lie inside another one."""
    folders = [Path(folder) for folder in (*SYSTEM, ZONES, f"{sys.base_prefix}/lib") if Path(folder).is_dir()]
    return [f for f in folders if f.is_symlink() or not any(other in f.parents for other in folders)]


def _build_root(root: Path, sources: dict[Path, int]) -> None:
    """Build a read-only root at `root` and enter it: the library folders, four devices and an empty /tmp.

    `sources` maps each folder's place in the root to an open descriptor of it.
    """
    kernel.mount("none", Path("/"), "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=64k,mode=755")
    for folder, fd in sources.items():
        target = root / str(folder)[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            target.symlink_to(os.readlink("", dir_fd=fd))
        else:
            target.mkdir()
            kernel.bind_read_only(f"/proc/self/fd/{fd}", target)
        for parent in target.relative_to(root).parents[:-1]:
            (root / parent).chmod(0o111)  # can be entered but not listed, so names such as a home folder stay hidden
    (root / "dev").mkdir()
    for device in DEVICES:
        (root / "dev" / device).touch()
        kernel.mount(f"/dev/{device}", root / "dev" / device, "", kernel.MS_BIND)
        kernel.make_read_only(root / "dev" / device, device=True)
    (root / "tmp").mkdir()
    (root / "dev" / "shm").symlink_to("/tmp")  # semaphores of multiprocessing are files there (sem_overview(7))
    kernel.enter_root(root)
    kernel.make_read_only(Path("/"))


def _exit_after(child: int) -> NoReturn:
    os.waitpid(child, 0)
    os._exit(0)

"""The pool of desktops that the options ask for, and what must be there for it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rlanything.domains.osworld.desktops.docker import DockerDesktop, pull, remove_orphans
from rlanything.domains.osworld.desktops.endpoint import EndpointDesktop, read_address
from rlanything.domains.osworld.desktops.local import LocalDesktop, LocalSettings, sweep
from rlanything.domains.osworld.desktops.pool import Desktop, DesktopPool
from rlanything.domains.osworld.desktops.usage import children, usage
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.errors import TaskError

PER_CORE = 2
THREADS = 5  # of a local desktop, for each process that it may have
PACKAGES = Path(__file__).parent / "packages.txt"  # Debian's, of a local desktop
ASKED = ("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n")
PROBE = ("bwrap", "--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true")


def check_backend(options: OsworldOptions) -> None:
    """Raises TaskError if the backend cannot be had: the message says what is missing and what to do."""
    match options.backend:
        case "local":
            _check_local(options)
        case "endpoint":
            if not options.endpoints:
                raise TaskError("dataset.options.endpoints is empty: name the guests, as host:5000:9222:8080")
            for text in options.endpoints:
                read_address(text)
            if not options.reset_command:
                raise TaskError(
                    "dataset.options.reset_command is empty: without it an episode begins where the last one ended; "
                    "give the command that resets a guest, such as [./reset.sh, '{endpoint}']"
                )
            if not shutil.which("setpriv"):
                raise TaskError("dataset.options.backend=endpoint: there is no setpriv command; install util-linux")
        case "docker":
            if not shutil.which("docker"):
                raise TaskError("dataset.options.backend=docker: there is no docker command; install Docker's client")
            if not Path(options.docker_disk).is_file():
                raise TaskError(
                    f"dataset.options.docker_disk: no file {options.docker_disk!r}; it is the disk image (qcow2) that "
                    "OSWorld publishes for its docker provider"
                )
            pull(options.docker_image)


def missing_packages() -> list[str]:
    """Debian's packages that local desktops need and that are not installed. Raises TaskError without dpkg-query."""
    wanted = PACKAGES.read_text(encoding="utf-8").split()
    try:
        told = subprocess.run([*ASKED, *wanted], capture_output=True, text=True).stdout
    except OSError as error:
        raise TaskError(
            "local desktops run on Debian and systems derived from it: this one has no dpkg-query; use the backend "
            "docker or endpoint"
        ) from error
    installed = {name for name, _, status in (row.partition(" ") for row in told.splitlines()) if status == "installed"}
    return [name for name in wanted if name not in installed]


def _check_local(options: OsworldOptions) -> None:
    if missing := missing_packages():
        raise TaskError(
            f"local desktops need Debian packages that are not installed; run scripts/osworld_desktop.sh, which does "
            f"the rest, too, or at first: sudo apt-get install {' '.join(missing)}"
        )
    if absent := [name for name in ("site", "home") if not (Path(options.home) / name).is_dir()]:
        raise TaskError(
            f"{options.home}: holds no folder {absent[0]}, which local desktops need; run scripts/osworld_desktop.sh, "
            "or name its folder with dataset.options.home"
        )
    probe = subprocess.run(PROBE, capture_output=True, text=True)
    if probe.returncode:
        raise TaskError(
            f"bubblewrap cannot isolate desktops on this machine ({probe.stderr.strip()}); user namespaces must be "
            "allowed (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )


def make_pool(options: OsworldOptions) -> DesktopPool:
    """The pool of the options' backend."""
    size = size_of(options)
    if options.backend == "local":
        sweep()
        return DesktopPool(local(options), size, options.spares, lambda desktops: _excess(desktops, options))
    if options.backend == "docker":
        remove_orphans()
        return DesktopPool(lambda: DockerDesktop(options), size)
    free = list(range(len(options.endpoints)))
    return DesktopPool(lambda: EndpointDesktop(options, free), size)


def size_of(options: OsworldOptions) -> int:
    """Desktops at once in this process."""
    if options.backend == "endpoint":
        return min(options.desktops or len(options.endpoints), len(options.endpoints))
    return options.desktops or PER_CORE * len(os.sched_getaffinity(0))


def local(options: OsworldOptions) -> Callable[[], LocalDesktop]:
    """A function that starts a local desktop."""
    home, (width, height) = Path(options.home).resolve(), options.screen
    settings = LocalSettings(
        site=home / "site",
        home=home / "home",
        screen=(width, height),
        limit_mib=options.limit_mib,
    )
    return lambda: LocalDesktop(settings)


def _excess(desktops: Sequence[Desktop], options: OsworldOptions) -> dict[int, str]:
    """Local desktops that take more than they may, by their place in the list, and what they take."""
    by_parent, found = children(), {}
    for i, desktop in enumerate(desktops):
        if isinstance(desktop, LocalDesktop) and desktop.alive:
            used = usage(desktop.process.pid, by_parent, options.processes, options.memory_mib)
            if used.processes > options.processes:
                found[i] = f"{used.processes} processes, more than {options.processes}"
            elif used.threads > options.processes * THREADS:
                found[i] = f"{used.threads} threads, more than {options.processes * THREADS}"
            elif used.memory_mib > options.memory_mib:
                found[i] = f"{used.memory_mib:.0f} MiB of memory, more than {options.memory_mib}"
    return found

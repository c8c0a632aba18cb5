"""The command that isolates a desktop: bubblewrap with a minimal read-only root. Pure.

A desktop sees /usr, a few named files of /etc, and folders of its own that live in memory with a size limit. It has no
network but its own loopback, an empty environment, one mapped user, and no right to make namespaces of its own.
Source: bwrap(1) of bubblewrap 0.8.
"""

from collections.abc import Sequence
from pathlib import Path

MIB = 2**20
ORACLE_MIB = 2048  # of files that evaluators fetch and write; they live in memory
FILES = "/files"  # the mirror of files, as the oracle sees it
HOST_NAME = "user-virtual-machine"  # tasks of OSWorld expect the name of its virtual machine
USER = 1000
GUEST = Path(__file__).parent / "guest"
PASSWD = (
    "root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n"
)
READABLE = (  # what programs need of the system's configuration and state; nothing that names users or holds keys
    "/etc/fonts /etc/alternatives /etc/libreoffice /etc/xdg /etc/gimp /etc/chromium /etc/chromium.d /etc/ssl/certs "
    "/etc/pulse /etc/dconf /etc/mime.types /etc/ld.so.cache /etc/nsswitch.conf /etc/localtime /etc/vim "
    "/etc/bash.bashrc /etc/sysstat /etc/X11 /etc/dbus-1 /etc/gtk-3.0 /etc/papersize /etc/os-release "
    "/var/cache/fontconfig /var/lib/dpkg/status /var/lib/dpkg/info"
).split()
ENVIRONMENT = {
    "HOME": "/home/user", "USER": "user", "LOGNAME": "user", "SHELL": "/bin/bash", "LANG": "C.UTF-8", "DISPLAY": ":0",
    "PATH": "/opt/desk/bin:/usr/local/bin:/usr/bin:/bin:/usr/games", "PYTHONPATH": "/opt/site", "PYTHONNOUSERSITE": "1",
    "PYTHONDONTWRITEBYTECODE": "1", "XDG_RUNTIME_DIR": "/run/user/1000", "XDG_CURRENT_DESKTOP": "GNOME",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",  # tasks of OSWorld name this address
    "NO_AT_BRIDGE": "0", "GTK_MODULES": "gail:atk-bridge", "QT_ACCESSIBILITY": "1", "GNOME_ACCESSIBILITY": "1",
    "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1", "ACCESSIBILITY_ENABLED": "1", "SAL_USE_VCLPLUGIN": "gtk3",
    "LIBGL_ALWAYS_SOFTWARE": "1",
}  # fmt: skip


def command(
    run: Path, site: Path, home: Path, screen: tuple[int, int], limit_mib: int, sockets: Sequence[int]
) -> list[str]:
    """The command that starts a desktop.

    `run` is the folder of its passwd and machine-id, `site` the folder of Python packages for the guest, `home` the
    golden home folder, `screen` its size [pixels]. `limit_mib` limits each folder that the desktop may write to, and
    its segments of shared memory. `sockets` are file descriptors of listening sockets, which it inherits: it never
    holds a path of the host that it could write to or replace.
    """
    flags = [*_apart(), "--unshare-net", "--hostname", HOST_NAME, "--as-pid-1"]
    for path in READABLE:
        flags += ["--ro-bind-try", path, path]
    flags += ["--ro-bind", str(run / "passwd"), "/etc/passwd", "--ro-bind", str(run / "machine-id"), "/etc/machine-id"]
    flags += ["--dev", "/dev", "--proc", "/proc"]
    for path in ("/dev/shm", "/tmp", "/var/tmp", "/run", "/home/user"):
        flags += ["--size", str(limit_mib * MIB), "--tmpfs", path]
    flags += ["--dir", f"/run/user/{USER}"]
    flags += ["--ro-bind", str(GUEST), "/opt/desk", "--ro-bind", str(site), "/opt/site"]
    flags += ["--ro-bind", str(home), "/opt/home"]
    flags += ["--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/", "--clearenv"]
    for name, value in ENVIRONMENT.items():
        flags += ["--setenv", name, value]
    flags += ["--setenv", "SCREEN_WIDTH", str(screen[0]), "--setenv", "SCREEN_HEIGHT", str(screen[1])]
    flags += ["--setenv", "SEGMENT_BYTES", str(limit_mib * MIB)]
    return [*flags, "/usr/bin/python3", "/opt/desk/server.py", *map(str, sockets)]


def oracle_command(python: Path, server: Path, files: Path) -> list[str]:
    """The command that starts the oracle: a Python with its packages, and the mirror of files as FILES."""
    venv, base = python.absolute().parents[1], python.resolve().parents[1]
    flags = _apart()
    for path in ("/etc/ssl/certs", "/etc/resolv.conf", "/etc/hosts", "/etc/ld.so.cache", "/etc/mime.types"):
        flags += ["--ro-bind-try", path, path]
    flags += ["--dev", "/dev", "--proc", "/proc", "--size", str(ORACLE_MIB * MIB), "--tmpfs", "/tmp"]
    for held in (base, venv, venv.resolve()):
        flags += ["--ro-bind", str(held), str(held)]
    flags += ["--ro-bind", str(server), "/opt/oracle.py", "--ro-bind-try", str(files.absolute()), FILES]
    flags += ["--remount-ro", "/", "--chdir", "/tmp", "--clearenv", "--setenv", "PATH", "/usr/bin:/bin"]
    flags += ["--setenv", "HOME", "/tmp", "--setenv", "PYTHONDONTWRITEBYTECODE", "1"]
    return [*flags, str(python.absolute()), "/opt/oracle.py"]


def _apart() -> list[str]:
    """Namespaces of its own but for the network, one user without capabilities, and /usr where programs look for it."""
    flags = ["bwrap", "--unshare-user", "--disable-userns", "--uid", str(USER), "--gid", str(USER)]
    flags += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    flags += ["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        flags += ["--symlink", f"usr/{name}", f"/{name}"]
    return flags

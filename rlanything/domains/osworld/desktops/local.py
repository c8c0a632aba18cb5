"""A desktop on this machine: bubblewrap, Xvfb, openbox and Debian's applications."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from rlanything.domains.osworld.desktops import isolation
from rlanything.domains.osworld.desktops.client import DesktopFault, Guest, connection
from rlanything.domains.osworld.desktops.forwarding import SOCKETS, Address, Forwarding
from rlanything.domains.osworld.options import BOOT_S

PREFIX = "rlanything-desktop-"  # of its folder, followed by the owner's process number
POLL_S = 0.05
UMASK = 0o022  # of the desktop, whatever the user's is: tasks are about modes of files, too
LOG_BYTES = 2000  # of a failed desktop's log that the message shows


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """How desktops of this machine are made."""

    site: Path
    """Folder of Python packages for the guest's server."""
    home: Path
    """Golden home folder, which each desktop begins with a copy of."""
    screen: tuple[int, int] = (1920, 1080)
    limit_mib: int = 512
    """Largest size of each folder that a desktop writes to [MiB]; they live in memory."""


class LocalDesktop:
    """One isolated desktop. Nothing of it outlives its process: what it writes lies in its own mount namespace."""

    def __init__(self, settings: LocalSettings) -> None:
        """Start it; `boot` waits until it answers. Raises DesktopFault if no process can be had."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))  # only this user can enter it
        (self.folder / "passwd").write_text(isolation.PASSWD)
        (self.folder / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        listening = [_listening(self.folder / f"{name}.sock") for name in SOCKETS]
        numbers = [each.fileno() for each in listening]
        command = isolation.command(
            self.folder, settings.site, settings.home, settings.screen, settings.limit_mib, numbers
        )
        nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command,
                env={},
                stdin=nothing,
                stdout=pipe,
                stderr=subprocess.STDOUT,
                pass_fds=numbers,
                process_group=0,
                umask=UMASK,
            )
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise DesktopFault(f"a desktop did not start: {error}") from error
        finally:
            for each in listening:
                each.close()
        self.forwarding: Forwarding | None = None
        self.ended_by = ""  # why the pool ended it
        self.guest: Guest

    async def boot(self) -> None:
        """Wait until the server answers. Raises DesktopFault if the desktop ends or takes longer than BOOT_S."""
        until = time.monotonic() + BOOT_S
        async with connection(self.folder / "server.sock", timeout=1.0) as client:
            while not await _answers(client):
                if self.process.poll() is not None:
                    raise DesktopFault(f"a desktop ended while it booted: {self._told()}")
                if time.monotonic() > until:
                    raise DesktopFault(f"a desktop did not boot within {BOOT_S:.0f} s: {self._told()}")
                await asyncio.sleep(POLL_S)

    async def connect(self) -> None:
        """Connect `guest` for the running event loop."""
        self.guest = Guest("http://desktop", self.folder / "server.sock")
        await self.guest.connect()

    async def address(self) -> Address:
        """TCP ports of 127.0.0.1 that lead to the desktop, until it is closed: evaluators know no other way."""
        if self.forwarding is None:
            self.forwarding = Forwarding(self.folder)
        return await self.forwarding.open()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    async def close(self) -> None:
        """End it and everything in it."""
        try:
            if self.forwarding is not None:
                self.forwarding.close()
            if hasattr(self, "guest"):
                await self.guest.close()
        finally:
            self.kill()

    def kill(self) -> None:
        """`close` without an event loop."""
        if self.alive:
            os.killpg(self.process.pid, signal.SIGKILL)  # bubblewrap's child leaves the group once it can end by itself
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _told(self) -> str:
        """The words of the desktop while it booted. The pipe holds 64 KiB, and nobody else reads it."""
        if not self.process.stdout or self.process.stdout.closed:
            return "it was closed"
        os.set_blocking(self.process.stdout.fileno(), False)
        said = self.process.stdout.read() or b""
        return said[-LOG_BYTES:].decode(errors="replace").strip() or "it said nothing"


def _listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(64)
    return made


def sweep() -> int:
    """Remove folders of desktops whose owner is dead; returns how many. Other users' folders stay.

    A bubblewrap whose owner was killed while it started may wait for ever: it is ended.
    """
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "bwrap" and _owner_is_dead(" ".join(process.info["cmdline"] or ())):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile, or is another user's
                process.kill()
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            own = folder.stat().st_uid == os.geteuid()
        except FileNotFoundError:
            continue
        if own and _owner_is_dead(str(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _owner_is_dead(text: str) -> bool:
    """True if a text names the folder of a desktop whose owner is no more."""
    found = re.search(rf"/{PREFIX}(\d+)-", text)
    return found is not None and not psutil.pid_exists(int(found[1]))


async def _answers(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("http://desktop/capabilities")).status_code == 200
    except httpx.HTTPError:
        return False

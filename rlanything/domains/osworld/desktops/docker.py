"""OSWorld's published image as desktops, through the docker command. Only containers that we started are removed."""

import asyncio
import logging
import os
import socket
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from rlanything.domains.osworld.desktops.client import DesktopFault, Guest
from rlanything.domains.osworld.desktops.forwarding import Address
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.errors import TaskError

LABEL = "rlanything.owner"  # of containers: the machine's name and the trainer's process number
PORTS = {"server": 5000, "chromium": 9222, "vlc": 8080}
MEMORY, CORES, DISK = "4G", "4", "32G"  # of a virtual machine, as OSWorld's own provider sets them
COMMAND_S = 120.0
PULL_S = 7200.0  # gigabytes
POLL_S = 1.0
LISTED = '{{.Names}} {{.Label "' + LABEL + '"}}'

logger = logging.getLogger(__name__)


class DockerDesktop:
    """One container, for one episode."""

    guest: Guest

    def __init__(self, options: OsworldOptions) -> None:
        """`boot` starts it."""
        self.options, self.ended_by = options, ""
        self.container = f"rlanything-{uuid.uuid4().hex}"
        self._address: Address | None = None
        self._changing = threading.Lock()  # a container that is being made cannot be removed yet

    def _run(self) -> None:
        options = self.options
        published = [word for port in PORTS.values() for word in ("-p", f"127.0.0.1::{port}")]
        devices = ["--device", "/dev/kvm"] if Path("/dev/kvm").exists() else ["-e", "KVM=N"]
        sizes = ["-e", f"RAM_SIZE={MEMORY}", "-e", f"CPU_CORES={CORES}", "-e", f"DISK_SIZE={DISK}"]
        disk = ["-v", f"{Path(options.docker_disk).resolve()}:/System.qcow2:ro"]
        named = ["--name", self.container, "--label", f"{LABEL}={_owner()}", "--cap-add", "NET_ADMIN"]
        words = ["run", "-d", *named, *published, *devices, *sizes, *disk, options.docker_image]
        with self._changing:
            if not self.alive:
                raise DesktopFault("a desktop was closed before its container was made")
            _docker(*words)

    @property
    def alive(self) -> bool:
        return bool(self.container)

    async def boot(self) -> None:
        """Start it, and wait until it shows something. Raises DesktopFault."""
        await asyncio.to_thread(self._run)
        address = await self.address()
        until = time.monotonic() + self.options.reset_s
        while True:
            guest = Guest(f"http://{address.host}:{address.server}")
            try:
                await guest.check_shown()
                return
            except DesktopFault as fault:
                if time.monotonic() > until:
                    raise DesktopFault(
                        f"container {self.container[:12]} was not ready in {self.options.reset_s:g} s: {fault}"
                    ) from fault
            finally:
                await guest.close()
            await asyncio.sleep(POLL_S)

    async def connect(self) -> None:
        """Connect `guest` for the running event loop."""
        address = await self.address()
        self.guest = Guest(f"http://{address.host}:{address.server}")
        await self.guest.connect()

    async def address(self) -> Address:
        """The ports of 127.0.0.1 that Docker chose."""
        if self._address is None:
            ports = {name: await asyncio.to_thread(self._port, port) for name, port in PORTS.items()}
            self._address = Address(host="127.0.0.1", **ports)
        return self._address

    def _port(self, port: int) -> int:
        told = _docker("port", self.container, str(port))
        found = told.strip().splitlines()[0].rpartition(":")[2] if told.strip() else ""
        if not found.isdecimal():
            raise DesktopFault(f"docker port {self.container[:12]} {port} told {told.strip()[:100]!r}")
        return int(found)

    async def close(self) -> None:
        """Remove the container."""
        try:
            if hasattr(self, "guest"):
                await self.guest.close()
        finally:
            await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """`close` without an event loop. It waits for a container that is being made."""
        container, self.container = self.container, ""
        if container:
            with self._changing:
                _remove(container)


def pull(image: str) -> None:
    """Fetch the image if this machine does not have it. Raises TaskError."""
    with suppress(DesktopFault):
        _docker("image", "inspect", image)
        return
    logger.warning("docker pull %s: this machine does not have the image yet", image)
    try:
        _docker("pull", "--quiet", image, limit_s=PULL_S)
    except DesktopFault as fault:
        raise TaskError(f"dataset.options.docker_image={image}: {fault}") from fault


def remove_orphans() -> None:
    """Remove containers of this machine's trainers that are dead: nothing else ends them."""
    machine, found = socket.gethostname(), _docker("ps", "-a", "--filter", f"label={LABEL}", "--format", LISTED)
    for container, _, owner in (line.partition(" ") for line in found.splitlines()):
        name, _, process = owner.rpartition(":")
        if name == machine and process.isdecimal() and not Path(f"/proc/{process}").exists():
            _remove(container)


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _remove(container: str) -> None:
    try:
        _docker("rm", "-f", container)
    except DesktopFault as fault:  # the others shall be removed, too
        logger.warning("%s", fault)


def _docker(*words: str, limit_s: float = COMMAND_S) -> str:
    """The output of a docker command. Raises DesktopFault."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DesktopFault(f"docker {words[0]}: {error}") from error
    if done.returncode:
        raise DesktopFault(f"docker {words[0]} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout

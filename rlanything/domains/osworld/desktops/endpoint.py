"""Guests of OSWorld that somebody else runs: reached over HTTP, reset by the user's command."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time

from rlanything.domains.osworld.desktops.client import DesktopFault, Guest
from rlanything.domains.osworld.desktops.forwarding import Address
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.errors import TaskError

POLL_S = 1.0


def read_address(text: str) -> Address:
    """`host:server:chromium:vlc`; ports that are left out are OSWorld's. Raises TaskError."""
    host, *ports = text.split(":")
    given = [int(port) if port.isdecimal() else 0 for port in ports]
    if not host or len(given) > 3 or not all(0 < port < 65536 for port in given):
        raise TaskError(f"dataset.options.endpoints: found {text}, expected host:5000:9222:8080")
    server, chromium, vlc = given + [5000, 9222, 8080][len(given) :]
    return Address(host=host, server=server, chromium=chromium, vlc=vlc)


class EndpointDesktop:
    """One of the guests, for one episode. The pool never asks for more than there are."""

    guest: Guest

    def __init__(self, options: OsworldOptions, free: list[int]) -> None:
        """Takes a number out of `free`, the places of `options.endpoints` that nobody uses; `close` puts it back."""
        self.options, self.free, self.index = options, free, free.pop(0)
        self.text = options.endpoints[self.index]
        self.ended_by, self._taken = "", True

    @property
    def alive(self) -> bool:
        return self._taken

    async def boot(self) -> None:
        """Reset the guest, and wait until it shows something. Raises DesktopFault."""
        await self._reset()
        until = time.monotonic() + self.options.reset_s
        while True:
            guest = self._guest()
            try:
                await guest.check_shown()
                return
            except DesktopFault as fault:
                if time.monotonic() > until:
                    raise DesktopFault(f"{self.text} was not ready in {self.options.reset_s:g} s: {fault}") from fault
            finally:
                await guest.close()
            await asyncio.sleep(POLL_S)

    async def _reset(self) -> None:
        words = [
            w.replace("{endpoint}", self.text).replace("{index}", str(self.index)) for w in self.options.reset_command
        ]
        # An event loop that ends while asyncio makes a process never ends (CPython 3.11), so it is polled. The output
        # is a file, because programs that the command leaves behind would keep a pipe open. If this process is killed,
        # the command is, too (PDEATHSIG), though not what it started, nor a set-uid program such as sudo. If it takes
        # too long, or the run ends, its process group is killed.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(self.options.reset_s):
                    while process.poll() is None:
                        await asyncio.sleep(0.02)
            except TimeoutError:
                limit = f"{self.options.reset_s:g} s for {self.text}"
                raise DesktopFault(f"reset_command did not end in {limit}") from None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - 1000))
            told = output.read().decode(errors="replace").strip()[-300:]
        if process.returncode:
            raise DesktopFault(f"reset_command ended with {process.returncode} for {self.text}: {told}")

    def _guest(self) -> Guest:
        address = read_address(self.text)
        return Guest(f"http://{address.host}:{address.server}")

    async def connect(self) -> None:
        """Connect `guest` for the running event loop."""
        self.guest = self._guest()
        await self.guest.connect()

    async def address(self) -> Address:
        return read_address(self.text)

    async def close(self) -> None:
        """Give the guest back. The next episode resets it."""
        try:
            if hasattr(self, "guest"):
                await self.guest.close()
        finally:
            self.kill()

    def kill(self) -> None:
        if self._taken:
            self._taken = False
            self.free.append(self.index)

"""TCP ports of 127.0.0.1 that lead to a desktop's unix sockets."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

BLOCK = 65536
SOCKETS = ("server", "9222", "8080")  # names of a desktop's sockets, in the order in which it inherits them


@dataclass(frozen=True, kw_only=True)
class Address:
    """The ports by which evaluators reach a desktop."""

    host: str
    server: int
    """Port of the guest's server."""
    chromium: int
    """Port of Chromium's developer tools."""
    vlc: int
    """Port of VLC's interface."""


class Forwarding:
    """The open ports of one desktop."""

    def __init__(self, sockets: Path) -> None:
        self.sockets = sockets
        self._servers: list[asyncio.Server] = []
        self._address: Address | None = None

    async def open(self) -> Address:
        """Open the ports; a second call returns the same."""
        if self._address is None:
            server, chromium, vlc = [await self._listen(name) for name in SOCKETS]
            self._address = Address(host="127.0.0.1", server=server, chromium=chromium, vlc=vlc)
        return self._address

    def close(self) -> None:
        """Close the ports."""
        for server in self._servers:
            server.close()
        self._servers, self._address = [], None

    async def _listen(self, name: str) -> int:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                inner_reader, inner_writer = await asyncio.open_unix_connection(self.sockets / f"{name}.sock")
            except OSError:
                writer.close()
                return
            await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))

        server = await asyncio.start_server(join, "127.0.0.1", 0)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while block := await reader.read(BLOCK):
            writer.write(block)
            await writer.drain()
    except OSError:  # either side may hang up
        pass
    finally:
        writer.close()

"""Weights from each learner rank to the engine workers on its accelerator, or on its machine if there are none.

Under ZeRO-3 every rank gathers every tensor, so each rank has all weights, and nothing crosses the network twice. The
weights go in pieces of memory that both processes map (`pieces`). A Unix socket carries each piece's handle to the
workers, and their acknowledgements back.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from rlanything.weights.transfer import TIMEOUT, Expected, NoSender, Sender
from rlanything.weights.transfer.pieces import Piece, unpacked

RETRY_S = 0.05  # pause between attempts to connect
# Ranks wait for one another in collectives. If a worker is lost, its rank has to give up before the workers of the
# other ranks do.
SENDER_TIMEOUT = TIMEOUT / 3
TAKEN = b"taken"


@dataclass(frozen=True, kw_only=True)
class IpcMeeting:
    """A `Meeting` at Unix sockets: worker i connects to rank `senders[i]`."""

    name: str
    """Unique to this meeting."""
    senders: tuple[int, ...]
    on_accelerators: bool
    """True if each pair shares an accelerator, whose memory then carries the weights."""

    def sender(self, rank: int) -> Sender:
        count = self.senders.count(rank)
        return IpcSender(self._address(rank), count, self.on_accelerators) if count else NoSender()

    def receiver(self, worker: int) -> IpcReceiver:
        return IpcReceiver(self._address(self.senders[worker]))

    def _address(self, rank: int) -> str:
        return f"\0rlanything-{self.name}-{rank}"  # Linux's abstract namespace (unix(7)): no file is left behind


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise RuntimeError(f"weight transfer: the connection to the other process failed: {error!r}") from error


class IpcSender:
    """A rank's end, connected to `count` workers."""

    @_as_runtime_error()
    def __init__(self, address: str, count: int, on_accelerator: bool) -> None:
        self._on_accelerator = on_accelerator
        self._piece: Piece | None = None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(SENDER_TIMEOUT.total_seconds())
            listener.bind(address)
            listener.listen(count)
            self._connections = [_connection(listener.accept()[0]) for _ in range(count)]

    def send(self, name: str, tensor: Tensor) -> None:
        if self._piece is not None and not self._piece.fits(tensor):
            self._hand_over()
        self._piece = self._piece or Piece(tensor, self._on_accelerator)
        self._piece.add(name, tensor)

    def finish(self) -> None:
        self._hand_over()
        for connection in self._connections:
            _send(connection, None)
        if self._on_accelerator:
            torch.cuda.ipc_collect()

    def _hand_over(self) -> None:
        """Let every worker take the current piece, then free it."""
        piece, self._piece = self._piece, None
        if piece is None:
            return
        try:
            for connection in self._connections:
                _send(connection, (piece.handle(), piece.expected))
            for connection in self._connections:
                _receive(connection, SENDER_TIMEOUT)
        finally:
            piece.close()


class IpcReceiver:
    """A worker's end. The sender says what comes, so `expected` is not used."""

    @_as_runtime_error()
    def __init__(self, address: str) -> None:
        self._connection = _connection(_connect(address))

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        try:
            while (message := _receive(self._connection, TIMEOUT)) is not None:
                handle, contents = message
                weights = unpacked(handle, contents, device)
                _send(self._connection, TAKEN)
                yield from weights
        except BaseException:  # also if the engine stops iterating
            self._connection.close()  # the sender then raises
            raise


def _connect(address: str) -> socket.socket:
    """Connect to a rank, which may not listen yet."""
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(address)
            return client
        except ConnectionRefusedError:
            client.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def _connection(connected: socket.socket) -> Connection:
    """Messages over a socket. Raises PermissionError if the process at the other end is another user's."""
    _, user, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError(f"found a process of user {user}, expected one of user {os.getuid()}")
    connected.settimeout(None)
    return Connection(connected.detach())


@_as_runtime_error()
def _send(connection: Connection, message: Any) -> None:
    connection.send(message)


@_as_runtime_error()
def _receive(connection: Connection, timeout: timedelta) -> Any:
    if not connection.poll(timeout.total_seconds()):
        raise TimeoutError(f"no answer within {timeout.total_seconds():g} s")
    return connection.recv()

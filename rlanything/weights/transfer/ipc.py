"""Weights from each learner rank to the engine workers beside it, on its accelerator or, without any, on its machine.

With ZeRO-3 every rank gathers every tensor, so each has them all, and nothing crosses the network twice. They go piece
by piece through memory that both map (`pieces`); a socket without a file carries where that is, and back that it was
taken.
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
from rlanything.weights.transfer.pieces import Piece, Place, unpacked

RETRY_S = 0.05
# A sender waits less than a receiver, which else would give up too while ranks wait for one of them.
SENDER_TIMEOUT = TIMEOUT / 3
TAKEN = b"taken"


@dataclass(frozen=True)
class IpcMeeting:
    """A `Meeting` in pairs: worker i takes its weights from rank `senders[i]`. `name` is unique.

    `on_accelerators`: each pair shares one, through whose memory they go.
    """

    name: str
    senders: tuple[int, ...]
    on_accelerators: bool

    def sender(self, rank: int) -> Sender:
        """See `Meeting.sender`."""
        count = self.senders.count(rank)
        return IpcSender(self._address(rank), count, self.on_accelerators) if count else NoSender()

    def receiver(self, worker: int) -> IpcReceiver:
        """See `Meeting.receiver`."""
        return IpcReceiver(self._address(self.senders[worker]))

    def _address(self, rank: int) -> str:
        return f"\0rlanything-{self.name}-{rank}"  # of Linux's abstract namespace (unix(7)): it goes with its processes


class IpcSender:
    """A rank's end, as `Sender`."""

    def __init__(self, address: str, count: int, on_accelerator: bool) -> None:
        self._on_accelerator = on_accelerator
        self._piece: Piece | None = None
        with _as_runtime_error(), socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(SENDER_TIMEOUT.total_seconds())
            listener.bind(address)
            listener.listen(count)
            self._connections = [_connection(listener.accept()[0]) for _ in range(count)]

    def send(self, name: str, tensor: Tensor) -> None:
        """See `Sender.send`."""
        if self._piece is not None and not self._piece.fits(tensor):
            self._hand_over()
        self._piece = self._piece or Piece(tensor, self._on_accelerator)
        self._piece.add(name, tensor)

    def finish(self) -> None:
        """See `Sender.finish`."""
        self._hand_over()
        with _as_runtime_error():
            for connection in self._connections:
                connection.send(None)
        if self._on_accelerator:
            torch.cuda.ipc_collect()

    def _hand_over(self) -> None:
        piece, self._piece = self._piece, None
        if piece is None:
            return
        try:
            with _as_runtime_error():
                for connection in self._connections:
                    connection.send((piece.place(), piece.expected))
                for connection in self._connections:
                    _receive(connection, SENDER_TIMEOUT)
        finally:
            piece.close()


class IpcReceiver:
    """A worker's end, as `Receiver`."""

    def __init__(self, address: str) -> None:
        with _as_runtime_error():
            self._connection = _connection(_connected(address))

    def receive(self, expected: Expected, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """See `Receiver.receive`; here the sender tells what comes. Where whoever takes them gives up, the sender
        learns of it."""
        try:
            while (message := self._next()) is not None:
                weights = unpacked(*message, device)
                with _as_runtime_error():
                    self._connection.send(TAKEN)
                yield from weights
        except BaseException:
            self._connection.close()
            raise

    def _next(self) -> tuple[Place, Expected] | None:
        with _as_runtime_error():
            message: tuple[Place, Expected] | None = _receive(self._connection, TIMEOUT)
            return message


def _connected(address: str) -> socket.socket:
    """To a rank that may not listen yet."""
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while True:
        found = socket.socket(socket.AF_UNIX)
        try:
            found.connect(address)
            return found
        except ConnectionRefusedError:
            found.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)


def _connection(found: socket.socket) -> Connection:
    """Messages over a socket. Raises PermissionError where another user is at its other end."""
    _, user, _ = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise PermissionError(f"a process of user {user} answers where weights are handed over")
    found.settimeout(None)
    return Connection(found.detach())


def _receive(connection: Connection, timeout: timedelta) -> Any:
    if not connection.poll(timeout.total_seconds()):
        raise TimeoutError(f"no answer within {timeout.total_seconds():g} s")
    return connection.recv()


@contextmanager
def _as_runtime_error() -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError) as error:
        raise RuntimeError(f"the other end of a transfer of weights was lost: {error!r}") from error

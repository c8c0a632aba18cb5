"""How the nodes of a job learn of each other's end: by a connection that each has to node 0."""

from __future__ import annotations

import select
import socket
import threading
import time
from contextlib import suppress

from rlanything.launch.addresses import address_of
from rlanything.launch.membership import LaunchError, Membership

JOIN_TIMEOUT_S = 600.0  # for node 0 to come up
RANK_BYTES = 4
JOINED = b"j"  # what node 0 answers a node of its own job, with the token for Ray and, before it, its length in a byte
ANSWER_S = 5.0  # for that
HERE = b"h"  # what the node says to it: from then on its connection counts, for it may have given up an earlier one
SIGNALS = 128  # an exit status from here on says by which signal
STOP = b"s"  # a node was told to stop: so is the job
WHY = b"w"  # a node cannot go on; up to its end the connection then says why
WHY_BYTES = 4096
LATE_S = 30.0  # for nodes of a job that ended at its very start, as by a mistyped key, to come and hear of it
# Without these a connection never learns that the network hangs or that the other machine lost its power: see tcp(7).
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 60_000}


def check_port(host: str, port: int) -> None:
    """Raise LaunchError where Ray's head could not listen there: it says so only in its log."""
    _listen(host, port).close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise LaunchError(
            f"cannot listen at {host}:{port} ({error.strerror}): another run holds the port, or {host} is not this "
            "node's address; choose another port (MLP_WORKER_0_PORT or MASTER_PORT)"
        ) from error


class StatusServer:
    """Node 0's end: it tells the others the script's exit status, when there is one.

    `lost` is the first node that left before that, `why` what it gave as its reason; `stopped` says whether a node was
    told to stop. `job` is what the nodes of this job say of it, with their rank (`membership.job_token`); `token` is
    what they need for its Ray.
    """

    def __init__(self, host: str, port: int, num_node: int, job: bytes, token: str = "") -> None:
        self.num_node, self._job, self._token = num_node, job, token.encode()
        self._socket = _listen(host, port)
        self._nodes: list[socket.socket] = []
        self.lost: int | None = None
        self.why = ""
        self.stopped = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                node = self._socket.accept()[0]
                _keep_alive(node)
                threading.Thread(target=self._watch, args=(node,), daemon=True).start()

    def _watch(self, node: socket.socket) -> None:
        """A node says which job it is of and its rank, and then only that it was told to stop, or why it leaves."""
        rank, why = 0, b""
        with suppress(OSError):  # the connection broke
            said = node.recv(len(self._job) + RANK_BYTES, socket.MSG_WAITALL)
            if not said.startswith(self._job):  # a stranger, or a node of another job that was given this port too
                node.close()
                return
            node.sendall(JOINED + bytes([len(self._token)]) + self._token)
            if node.recv(1) != HERE:
                node.close()
                return
            rank = int.from_bytes(said[len(self._job) :])
            self._nodes.append(node)
            while (word := node.recv(1)) == STOP:
                self.stopped = True
            if word == WHY:
                why = node.recv(WHY_BYTES, socket.MSG_WAITALL)
        if 0 < rank < self.num_node and self.lost is None:
            self.why = why.decode(errors="replace")
            self.lost = rank

    def tell(self, status: int) -> None:
        """Send the exit status and end. Waits a little for nodes that have not come yet, since nobody else would tell
        them, but not where a signal ended the job."""
        deadline = time.monotonic() + (LATE_S if status < SIGNALS else 0)
        while len(self._nodes) < self.num_node - 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        self._socket.close()
        for node in self._nodes:
            with suppress(OSError):
                node.sendall(bytes([status & 0xFF]))
                node.shutdown(socket.SHUT_RDWR)  # `_watch` is in a call that `close` alone would not end
                node.close()


class StatusConnection:
    """Another node's end. Raises LaunchError where no node 0 of this job answers: its name may be known only once it
    is up, and another program may have the port."""

    def __init__(self, me: Membership, job: bytes, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._socket = socket.create_connection((address_of(me.host), me.port + 1), timeout=ANSWER_S)
                self._socket.sendall(job + me.rank.to_bytes(RANK_BYTES))
                if self._socket.recv(1) == JOINED:
                    length = int.from_bytes(self._socket.recv(1))
                    self.token: str = self._socket.recv(length, socket.MSG_WAITALL).decode()
                    self._socket.sendall(HERE)
                    break
                raise ConnectionError("a job of another command or id has the port, or another program")
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"node 0 does not answer at {me.host}:{me.port + 1} after {timeout_s:g} s ({error}); is its "
                        "job running, and the port open?"
                    ) from error
                time.sleep(1)
        _keep_alive(self._socket)
        self.head: str = self._socket.getpeername()[0]
        self.address: str = self._socket.getsockname()[0]  # of this node, as node 0 sees it

    def say_stop(self) -> None:
        """This node was told to stop."""
        with suppress(OSError):  # node 0 is gone: `told` says so
            self._socket.send(STOP)

    def say_why(self, text: str) -> None:
        """This node cannot go on, and leaves."""
        with suppress(OSError):
            self._socket.sendall(WHY + text.encode()[:WHY_BYTES])

    def told(self, wait_s: float) -> int | None:
        """The exit status that node 0 tells; None where it told none within `wait_s`. Raises OSError: it is gone."""
        if not select.select([self._socket], [], [], wait_s)[0]:
            return None
        said = self._socket.recv(1)
        if not said:
            raise ConnectionResetError("node 0 closed the connection")
        return said[0]

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)

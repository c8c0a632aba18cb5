"""The connection of every node to node 0, by which the nodes of a job learn how it ends.

1. A node sends the job's token and its own rank. Node 0 hangs up on everybody else.
2. Node 0 answers ADMITTED, the length of Ray's token in one byte, and Ray's token.
3. The node sends CONFIRMED. From then on a broken connection means a lost node. Before, it does not: a node that node 0
   answers too late hangs up and connects again.
4. The node may send STOP (it was told to stop, so the whole job stops), or FAULT and a text (why it leaves).
5. Node 0 sends the script's exit status in one byte, and hangs up.
"""

import select
import socket
import threading
import time
from contextlib import suppress

from rlanything.launch.membership import LaunchError, Membership
from rlanything.launch.network import address_of

ADMITTED, CONFIRMED, STOP, FAULT = b"a", b"c", b"s", b"f"
RANK_BYTES = 4
FAULT_BYTES = 4096
ANSWER_S = 5.0  # for node 0 to answer a node
JOIN_TIMEOUT_S = 600.0  # for node 0 to come up
LATE_S = 30.0  # for nodes to come to a job that ended at its very start, as by a mistyped key
SIGNALS = 128  # an exit status from here on means that a signal ended the script
# Without keepalive a connection never learns that the network hangs or that the other machine lost its power: tcp(7).
KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3, socket.TCP_USER_TIMEOUT: 60_000}


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises LaunchError if another program has the port, or `host` is not this machine."""
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise LaunchError(
            f"cannot listen at {host}:{port} ({error.strerror}): another run holds the port, or {host} is not this "
            "node's address; choose another port (MLP_WORKER_0_PORT or MASTER_PORT)"
        ) from error


class StatusServer:
    """Node 0's end. `job` is the job's token (`membership.job_token`), `token` Ray's.

    Raises LaunchError if it cannot listen.
    """

    def __init__(self, host: str, port: int, num_node: int, job: bytes, token: str = "") -> None:
        self.num_node, self._job, self._token = num_node, job, token.encode()
        self._socket = listen(host, port)
        self._nodes: list[socket.socket] = []
        self.lost: int | None = None  # the rank of the first node that left before `end`
        self.reason = ""  # the fault that it reported
        self.stopped = False  # a node was told to stop
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # `end` closed the socket
            while True:
                node = self._socket.accept()[0]
                _keep_alive(node)
                threading.Thread(target=self._watch, args=(node,), daemon=True).start()

    def _watch(self, node: socket.socket) -> None:
        rank, reason = 0, b""
        with suppress(OSError):  # the connection broke
            greeting = node.recv(len(self._job) + RANK_BYTES, socket.MSG_WAITALL)
            ours = greeting.startswith(self._job)  # else a stranger, or a node of another job that has this port too
            if ours:
                node.sendall(ADMITTED + bytes([len(self._token)]) + self._token)
            if not ours or node.recv(1) != CONFIRMED:
                node.close()
                return
            rank = int.from_bytes(greeting[len(self._job) :])
            self._nodes.append(node)
            while (message := node.recv(1)) == STOP:
                self.stopped = True
            if message == FAULT:
                reason = node.recv(FAULT_BYTES, socket.MSG_WAITALL)
        if 0 < rank < self.num_node and self.lost is None:
            self.reason = reason.decode(errors="replace")
            self.lost = rank

    def end(self, status: int) -> None:
        """Send the exit status to all nodes and hang up.

        Wait LATE_S for nodes that have not connected yet, since nobody else tells them, unless a signal ended the job.
        """
        deadline = time.monotonic() + (LATE_S if status < SIGNALS else 0)
        while len(self._nodes) < self.num_node - 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        self._socket.close()
        for node in self._nodes:
            with suppress(OSError):
                node.sendall(bytes([status & 0xFF]))
                node.shutdown(socket.SHUT_RDWR)  # `close` alone would not end the `recv` of `_watch`
                node.close()


class StatusConnection:
    """Another node's end: `token` is Ray's, `head` node 0's address, `address` this node's as node 0 sees it.

    Tries again for `timeout_s` seconds, since node 0's name may be known only once it is up, and another program may
    have the port. Raises LaunchError if no node 0 of this job answers in that time.
    """

    def __init__(self, me: Membership, job: bytes, timeout_s: float) -> None:
        self.stopped = False
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._socket = socket.create_connection((address_of(me.host), me.port + 1), timeout=ANSWER_S)
                self._socket.sendall(job + me.rank.to_bytes(RANK_BYTES))
                if self._socket.recv(1) != ADMITTED:
                    raise ConnectionError("a job of another command or id has the port, or another program")
                length = int.from_bytes(self._socket.recv(1))
                self.token: str = self._socket.recv(length, socket.MSG_WAITALL).decode()
                self._socket.sendall(CONFIRMED)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(
                        f"node 0 does not answer at {me.host}:{me.port + 1} after {timeout_s:g} s ({error}); is its "
                        "job running, and the port open?"
                    ) from error
                time.sleep(1)
        _keep_alive(self._socket)
        self.head: str = self._socket.getpeername()[0]
        self.address: str = self._socket.getsockname()[0]

    def report_stop(self, *_: object) -> None:
        """Tell node 0 that this node was told to stop. A handler of signals."""
        self.stopped = True
        with suppress(OSError):  # node 0 is gone: `exit_status` raises
            self._socket.send(STOP)

    def report_fault(self, text: str) -> None:
        """Tell node 0 why this node leaves."""
        with suppress(OSError):
            self._socket.sendall(FAULT + text.encode()[:FAULT_BYTES])

    def exit_status(self, wait_s: float) -> int | None:
        """The exit status, None if node 0 sends none within `wait_s` seconds. Raises OSError if node 0 is gone."""
        if not select.select([self._socket], [], [], wait_s)[0]:
            return None
        status = self._socket.recv(1)
        if not status:
            raise ConnectionResetError("node 0 closed the connection")
        return status[0]

    def close(self) -> None:
        self._socket.close()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)

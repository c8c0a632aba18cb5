"""Finds interrupts that Python lost.

Python raises KeyboardInterrupt wherever the main thread is. Finalisers, and libraries that ignore errors of an import,
swallow it, and the run goes on. So `record_signals` has Python write every signal's number to a socket, too, and
`raise_missed_interrupt` reads the socket when a phase begins.
Source: docs.python.org, `signal.set_wakeup_fd` and `sys.unraisablehook`.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

_sockets: tuple[socket.socket, socket.socket] | None = None  # Python writes signal numbers into the first one


def record_signals() -> None:
    """Record every signal from now on, and print no report of a KeyboardInterrupt that a finaliser swallowed."""
    global _sockets
    if _sockets is not None:
        return
    _sockets = socket.socketpair()
    for end in _sockets:
        end.setblocking(False)
    signal.set_wakeup_fd(_sockets[0].fileno(), warn_on_full_buffer=False)
    report = sys.unraisablehook

    def report_others(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            report(unraisable)

    sys.unraisablehook = report_others


def raise_missed_interrupt() -> None:
    """Raise KeyboardInterrupt if SIGINT or SIGTERM came: the caller still runs, so the exception was lost."""
    if _sockets is None or threading.current_thread() is not threading.main_thread():
        return
    try:
        numbers = _sockets[1].recv(4096)
    except BlockingIOError:
        return
    if {signal.SIGINT, signal.SIGTERM} & set(numbers):
        raise KeyboardInterrupt

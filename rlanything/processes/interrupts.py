"""Signals to end that got lost. Python raises KeyboardInterrupt wherever the main thread happens to be: within a
finaliser, or a library that ignores what goes wrong in an import of its own, nobody hears of it.

`listen` has Python note every signal besides, and `raise_unheard` looks at the notes, where a phase of a run begins.
Source: docs.python.org, `signal.set_wakeup_fd`, `sys.unraisablehook`.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading

_notes: tuple[socket.socket, socket.socket] | None = None  # Python writes into the first one


def listen() -> None:
    """Begin to note signals, and to say nothing of a KeyboardInterrupt that a finaliser cannot pass on."""
    global _notes
    if _notes is not None:
        return
    _notes = socket.socketpair()
    for end in _notes:
        end.setblocking(False)
    signal.set_wakeup_fd(_notes[0].fileno(), warn_on_full_buffer=False)
    say = sys.unraisablehook

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if not issubclass(found.exc_type, KeyboardInterrupt):
            say(found)

    sys.unraisablehook = unraisable


def raise_unheard() -> None:
    """Raise KeyboardInterrupt in the main thread where SIGINT or SIGTERM came: had it been heard, nobody would ask."""
    if _notes is None or threading.current_thread() is not threading.main_thread():
        return
    try:
        came = _notes[1].recv(4096)
    except BlockingIOError:
        return
    if {signal.SIGINT, signal.SIGTERM} & set(came):
        raise KeyboardInterrupt

"""The first process of a desktop: it ends, and with it the desktop, if what the desktop needs ends.

The module runs in our guests, before the screen is there, and needs the standard library alone.
"""

import ctypes
import os
import select
import sys
import threading
from pathlib import Path

import limits

UNDUMPABLE = 4, 0  # PR_SET_DUMPABLE
KEYCTL = {"x86_64": 250, "aarch64": 219}  # system call
JOIN_SESSION_KEYRING = 1
SCREEN = "Xvfb"  # becomes a child of the first process when the shell that starts it ends


def become_second() -> None:
    """Return in a child. This process, the first of the desktop, collects what ends. If the child or the X server ends,
    or is stopped, it ends, and with it the desktop: the agent's programs did that. It ends with its owner, too.

    The agent is the same user. It shall not reach the memory and the sockets of either through /proc or ptrace, so this
    one is made undumpable, prctl(2), which the child inherits. Namespaces do not part session keyrings, keyctl(2): the
    trainer's, which may hold tickets of the user's, is left for an empty one.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(*UNDUMPABLE, 0, 0, 0)
    libc.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)
    child = os.fork()
    if child == 0:
        return
    for number in sys.argv[1:]:
        os.close(int(number))
    for watch in (end_with_owner, limits.watch_screen):
        threading.Thread(target=watch, daemon=True).start()
    while True:
        process = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOWAIT).si_pid  # type: ignore[union-attr]
        name = Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
        os.waitid(os.P_PID, process, os.WEXITED | os.WSTOPPED | os.WNOHANG)  # one that stopped may go on by now
        if process == child or name == SCREEN:
            os._exit(1)


def end_with_owner() -> None:
    """End the desktop when nobody holds the other end of its output, which the owner closes by its death, too.

    bubblewrap's --die-with-parent does not cover the time in which it makes the desktop: who kills it then leaves this
    process behind.
    """
    watched = select.poll()
    watched.register(sys.stdout.fileno(), 0)  # poll(2) tells POLLERR unasked
    watched.poll()
    os._exit(1)

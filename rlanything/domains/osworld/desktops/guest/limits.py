"""Limits of a desktop that are seen from inside it alone. A desktop that breaks one is ended.

The trainer counts processes and the memory that they have mapped. It cannot see a segment of shared memory (shmget)
that none has attached, the number of files in the desktop's folders, or whether the X server takes new connections.
The module runs in our guests' processes, and needs the standard library alone.
"""

import os
import socket
import struct
import time
from pathlib import Path

SEGMENTS = Path("/proc/sysvipc/shm")  # proc_sysvipc(5); a kernel may lack such segments
RSS, SWAP = 14, 15  # its columns [bytes]
FOLDERS = ("/dev/shm", "/tmp", "/var/tmp", "/run", os.path.expanduser("~"))
FILES = 50_000  # of each folder; an empty one takes about a KiB of the kernel's memory
LOOK_S = 1.0
SCREEN = "/tmp/.X11-unix/X0"  # its abstract socket, unix(7): nobody can remove that
SETUP, ACCEPTED = struct.pack("<BxHHHHxx", ord("l"), 11, 0, 0, 0), b"\1"  # X11 protocol, connection setup
SCREEN_S = 20.0  # time that the X server has to take a connection; the trainer waits longer for a screenshot


def watch(limit: int) -> None:
    """End this process, and with it the desktop, if the segments take more than `limit` bytes, if a folder has more
    than FILES files, or if either cannot be read."""
    try:
        while _segment_bytes() <= limit and all(_num_files(folder) <= FILES for folder in FOLDERS):
            time.sleep(LOOK_S)
    finally:
        os._exit(1)


def watch_screen() -> None:
    """End this process, and with it the desktop, if the X server, once it is there, takes no connection in SCREEN_S.

    An agent's program may grab the server for good, or hold all of its connections. That is no fault of the desktop.
    The process must be one that never waits for the X server elsewhere.
    """
    while SCREEN.encode() not in Path("/proc/net/unix").read_bytes():
        time.sleep(LOOK_S)
    try:
        while True:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(SCREEN_S)
                asking.connect(f"\0{SCREEN}")
                asking.sendall(SETUP)
                if asking.recv(1) != ACCEPTED:
                    break
            time.sleep(LOOK_S)
    finally:
        os._exit(1)


def _segment_bytes() -> int:
    if not SEGMENTS.exists():
        return 0
    rows = [row.split() for row in SEGMENTS.read_text().splitlines()[1:]]
    return sum(int(row[RSS]) + int(row[SWAP]) for row in rows)


def _num_files(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree

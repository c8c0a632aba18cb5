"""Shared memory without a name: other processes can map it while its creator holds it, and it leaves nothing behind."""

import subprocess
import sys

import pytest

from rlanything.processes.shared_memory import SharedMemory


def test_another_process_writes_into_it():
    ours = SharedMemory(create=True, size=10)
    code = "from rlanything.processes.shared_memory import SharedMemory as S; import sys; S(sys.argv[1]).buf[3] = 7"
    subprocess.run([sys.executable, "-c", code, ours.name], check=True, timeout=60)
    assert ours.size == 10 and bytes(ours.buf) == bytes([0, 0, 0, 7] + 6 * [0])


def test_it_is_gone_once_its_creator_closes_it():
    ours = SharedMemory(create=True, size=10)
    theirs = SharedMemory(ours.name)
    held = theirs.buf[2:4]
    for memory in (ours, theirs, theirs):
        memory.close()
    ours.unlink()
    assert bytes(held) == b"\0\0"
    with pytest.raises(FileNotFoundError):
        SharedMemory(ours.name)

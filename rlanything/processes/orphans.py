"""Linux system calls by which no process outlives the one that it works for.

Uses only the standard library, because the sandbox's runner imports it and must stay small. Source: prctl(2).
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter's lock: no other thread may run during clone(2)
libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def check_call(result: int, call: str) -> int:
    """The `result` of a libc function. Raises OSError, naming `call`, if it is negative."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{call}: {os.strerror(error)}")
    return result


def prctl(option: int, *args: int) -> None:
    """Call prctl(2). Raises OSError."""
    check_call(libc.prctl(option, *args, *[0] * (4 - len(args))), "prctl")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process signal `number` when the *thread* that started it ends (PDEATHSIG)."""
    prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of descendants whose own parent ends (child subreaper), so that they can be found and ended.

    A process that stops to look for them passes `adopt` false: else those that end later would stay as zombies.
    """
    prctl(_PR_SET_CHILD_SUBREAPER, adopt)


def end_with_multiprocessing_parent() -> None:
    """Call `die_with_parent` if multiprocessing started this process.

    vLLM's processes would otherwise survive a killed parent and keep all of its accelerator's memory.
    """
    import multiprocessing  # imported here: the sandbox's runner must stay small

    parent = multiprocessing.parent_process()
    if parent is None:
        return
    die_with_parent()
    if os.getppid() != parent.pid:  # the parent ended before `die_with_parent` took effect
        os._exit(1)

"""Which system calls a program is refused, as a seccomp program.

libseccomp (by pyseccomp) compiles it; without it there is none, and the namespaces and limits of `runner` stand alone.
"""

from __future__ import annotations

import errno
import os
import socket

from rlanything.sandbox.kernel import CLONE_THREAD

# Memory and processor time that no limit counts, other processes' memory, namespaces, the kernel's own doors.
REFUSED = (
    "memfd_create memfd_secret shmget msgget semget mq_open vmsplice splice tee fork vfork flock "
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
    "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsmount fsconfig mount_setattr "
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register "
    "add_key request_key keyctl open_by_handle_at name_to_handle_at personality "
    "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff "
    "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname quotactl acct syslog "
    "ioperm iopl modify_ldt vhangup fanotify_init inotify_init inotify_init1"
).split()


def seccomp_rules() -> bytes:
    """The program, or nothing where libseccomp is missing."""
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError):
        return b""
    refuse = pyseccomp.ERRNO(errno.EPERM)
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in REFUSED:
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:  # else this architecture has no such call
            rules.add_rule(refuse, name)
    rules.add_rule(refuse, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, CLONE_THREAD, 0))  # threads alone
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")  # its flags are out of a filter's sight; libc falls back
    rules.add_rule(refuse, "socket", pyseccomp.Arg(0, pyseccomp.NE, int(socket.AF_UNIX)))
    with open(os.memfd_create("rules"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()

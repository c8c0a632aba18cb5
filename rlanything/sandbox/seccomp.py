"""The seccomp filter: the system calls that a program is denied.

pyseccomp, a binding of libseccomp, compiles the filter to BPF. If either is missing there is no filter, and the
namespaces and resource limits of `runner` hold programs alone. Source: seccomp(2), seccomp_export_bpf(3).
"""

import errno
import os
import socket

from rlanything.sandbox.kernel import CLONE_THREAD

# These calls take memory or processor time that no limit counts, reach into other processes, change namespaces or
# mounts, or open parts of the kernel that programs rarely need.
DENIED = (
    "memfd_create memfd_secret shmget msgget semget mq_open vmsplice splice tee fork vfork flock "
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd "
    "unshare setns mount umount2 pivot_root chroot move_mount open_tree fsopen fsmount fsconfig mount_setattr "
    "bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register "
    "add_key request_key keyctl open_by_handle_at name_to_handle_at personality "
    "init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff "
    "settimeofday clock_settime adjtimex clock_adjtime sethostname setdomainname quotactl acct syslog "
    "ioperm iopl modify_ldt vhangup fanotify_init inotify_init inotify_init1"
).split()


def compile_filter() -> bytes:
    """Compile the filter to BPF instructions; return b"" if libseccomp or pyseccomp is missing.

    A denied call returns EPERM. `clone` may only make threads, and `socket` may only make Unix sockets.
    """
    try:
        import pyseccomp
    except (ImportError, RuntimeError, OSError):
        return b""
    deny = pyseccomp.ERRNO(errno.EPERM)
    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in DENIED:
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:  # some architectures lack some calls
            rules.add_rule(deny, name)
    rules.add_rule(deny, "clone", pyseccomp.Arg(0, pyseccomp.MASKED_EQ, CLONE_THREAD, 0))
    # clone3 passes its flags in memory, which a filter cannot read. ENOSYS makes libc fall back to clone.
    rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    rules.add_rule(deny, "socket", pyseccomp.Arg(0, pyseccomp.NE, int(socket.AF_UNIX)))
    with open(os.memfd_create("filter"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()

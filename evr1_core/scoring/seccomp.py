"""The system calls that a sandboxed interpreter may make, as a filter program for the kernel.

A list of what is allowed, not of what is forbidden: what a kernel learns next year is refused too. Refused calls fail with
EPERM; those that only an attack makes (a new process, a signal, a way out of the limits) end the process. The program is classic BPF over
`struct seccomp_data` (Documentation/userspace-api/seccomp_filter.rst of the kernel).
"""

from __future__ import annotations

import functools
import platform
import struct

_ARCH = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026

# name: number on x86-64, number on aarch64 (None: does not exist there)
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "newfstatat": (262, 79), "statx": (332, 291), "stat": (4, None), "lstat": (6, None), "getdents64": (217, 61),
    "getcwd": (79, 17), "readlink": (89, None), "readlinkat": (267, 78), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "pipe": (22, None), "pipe2": (293, 59), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216),
    "madvise": (28, 233), "brk": (12, 214), "membarrier": (324, 283), "futex": (202, 98), "set_robust_list": (273, 99),
    "rseq": (334, 293), "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "exit": (60, 93), "exit_group": (231, 94),
    "restart_syscall": (219, 128), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165), "getrlimit": (97, 163),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176),
    "getegid": (108, 177), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "eventfd2": (290, 19), "recvfrom": (45, 207), "shutdown": (48, 210), "getsockopt": (55, 209),
    "getsockname": (51, 204),
}  # fmt: skip
_FATAL: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129), "tkill": (200, 130),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "setsid": (112, 157), "setpgid": (109, 154),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "pidfd_open": (434, 434), "alarm": (37, None), "setitimer": (38, 103),
    "timer_create": (222, 107), "io_uring_setup": (425, 425), "bpf": (321, 280),
}  # fmt: skip

# name: (numbers, index of the argument, "clear" | "set" | "one of" | "null", its bits or values, what else happens)
_WRITES = 0o1103  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_DESCRIPTOR_FLAGS = (0, 1, 2, 3, 4, 1030)  # fcntl: no F_SETOWN and F_SETSIG, which send signals
_TERMINAL = (0x5401, 0x5413, 0x5421, 0x5450, 0x5451)  # ioctl: isatty, window size, non-blocking, close-on-exec
_AF_UNIX, _CLONE_THREAD = 1, 0x10000
_CONDITIONAL = (
    ((2, None), 1, "clear", (_WRITES,), _EPERM),  # open
    ((257, 56), 2, "clear", (_WRITES,), _EPERM),  # openat
    ((72, 25), 1, "one of", _DESCRIPTOR_FLAGS, _EPERM),  # fcntl
    ((16, 29), 1, "one of", _TERMINAL, _EPERM),  # ioctl
    ((53, 199), 0, "one of", (_AF_UNIX,), _EPERM),  # socketpair: event loops wake themselves with one
    ((44, 206), 4, "null", (), _EPERM),  # sendto: no address
    ((302, 261), 2, "null", (), _EPERM),  # prlimit64: no new limit
    ((56, 220), 0, "set", (_CLONE_THREAD,), _KILL),  # clone: threads, not processes
)
_CLONE3 = 435  # its flags are in memory that a filter can't see; the C library falls back to clone

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


@functools.cache
def filter_program(machine: str = "") -> bytes:
    """The program as an array of `struct sock_filter`; empty where this machine's numbers aren't known."""
    found = _ARCH.get(machine or platform.machine())
    if found is None:
        return b""
    column, arch = found
    program = [
        (_LOAD, 0, 0, 4), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0), (_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL),  # the second numbering of x86-64
    ]  # fmt: skip
    for calls, verdict in ((_ALLOWED, _ALLOW), (_FATAL, _KILL), ({"clone3": (_CLONE3, _CLONE3)}, _ENOSYS)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, verdict)]
    for numbers, argument, test, values, otherwise in _CONDITIONAL:
        number = numbers[column]
        if number is not None:
            body = _condition(argument, test, values, otherwise)
            program += [(_EQUAL, 0, len(body), number), *body]
    program.append((_RETURN, 0, 0, _EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _condition(argument: int, test: str, values: tuple[int, ...], otherwise: int) -> list[tuple[int, int, int, int]]:
    """Instructions that look at the lower half of one argument, of a pointer at both, and always return."""
    body = [(_LOAD, 0, 0, 16 + 8 * argument)]
    if test == "null":
        upper = (_LOAD, 0, 0, 20 + 8 * argument)
        return [*body, (_EQUAL, 0, 2, 0), upper, (_EQUAL, 1, 0, 0), (_RETURN, 0, 0, otherwise), (_RETURN, 0, 0, _ALLOW)]
    if test == "one of":
        for value in values:
            body += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW)]
        return [*body, (_RETURN, 0, 0, otherwise)]
    met, missed = (otherwise, _ALLOW) if test == "clear" else (_ALLOW, otherwise)
    return [*body, (_ANY_BIT, 0, 1, values[0]), (_RETURN, 0, 0, met), (_RETURN, 0, 0, missed)]

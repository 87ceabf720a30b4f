"""The process in which one piece of untrusted Python runs. A script of its own, started by `sandbox`; standard library only.

    request (code, expression, limits, secret) -> limits -> kernel filters -> "ready" -> audit hook -> the code

It never knows what is expected: the value of the expression goes out as plain data and is compared by the parent. The
code can read everything in this process and forge a value, but gains nothing by it that the expression would not give it.
"""

from __future__ import annotations

import marshal
import os
import posix
import resource
import sys
from _json import encode_basestring_ascii
from collections.abc import Callable
from typing import Any

FORBIDDEN = 77
"""Exit status after something forbidden."""
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 1, 38, 22, 2
_LANDLOCK = (444, 445, 446)  # create a ruleset, add a rule, restrict: the same numbers on all machines
_FILE_RIGHTS, _READ = 0x1FFF, 0b1100
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
_MODULES = ("ctypes", "_ctypes", "_posixshmem", "_xxsubinterpreters", "_interpreters", "_xxinterpchannels", "_dbm", "_gdbm", "_curses")
_HARMLESS = (
    "import", "compile", "exec", "marshal.", "pickle.find_class", "open", "os.listdir", "os.scandir", "os.putenv", "os.unsetenv",
    "builtins.", "object.__", "code.__new__", "function.__new__", "array.__new__", "mmap.__new__", "_thread.", "time.sleep", "pdb.Pdb",
    "sys._getframe", "sys.addaudithook", "sys.excepthook", "sys.unraisablehook", "sys.set_asyncgen_hook", "cpython.run_",
    "cpython._PySys_Clear", "cpython.PyInterpreterState_Clear",
)  # fmt: skip


def main() -> None:
    with open(int(sys.argv[1]), "rb") as source:
        request: dict[str, Any] = marshal.loads(source.read())
    out = int(sys.argv[2])
    layers = _confine(request)
    os.environ.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes", "struct", "_struct", "resource")]:
        del sys.modules[name]
    sys.argv[:] = ["main.py"]
    module = type(sys)("__main__" if request["expression"] is None else "solution")
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    if "random" in request["code"]:
        import random

        random.seed(0)
    os.write(out, f"{request['secret']} ready {','.join(layers)}\n".encode())
    encode = _encoder(request["output"])
    sys.addaudithook(_hook(tuple(path + "/" for path in sys.path)))
    _run(request, module.__dict__, out, encode)


def _run(request: dict[str, Any], names: dict[str, Any], out: int, encode: Callable[[Any], str]) -> None:
    """The code, then the expression. A test on standard output ends as a program does; anything else ends at once."""
    leave, write, compiled, value_of = posix._exit, posix.write, compile, eval  # the code may rebind them
    try:
        exec(compiled(request["code"], "<answer>", "exec", dont_inherit=True), names)
    except SystemExit:
        if request["expression"] is None:
            raise
        leave(1)
    except BaseException:  # whatever it is, it is the answer's own
        leave(1)
    if request["expression"] is None:
        return
    try:
        text = encode(value_of(compiled(request["expression"], "<test>", "eval", dont_inherit=True), names))
    except BaseException:
        leave(1)
        raise
    data = f"{request['secret']} value {text}\n".encode()
    while data:
        data = data[write(out, data) :]
    leave(0)


def _confine(request: dict[str, Any]) -> list[str]:
    """Limits and kernel filters, before any line of the code is even compiled. Returns the names of the filters that hold."""
    for kind, value in (
        (resource.RLIMIT_AS, request["memory"]),
        (resource.RLIMIT_CPU, int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + request["cpu"]),
        (resource.RLIMIT_NOFILE, request["files"]),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    import _signal  # pyright: ignore[reportMissingImports] - a tenth of the time that `signal` takes

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # later nothing can set a handler, and event loops would try to
    try:
        import ctypes
    except ImportError:  # an interpreter built without it: the audit hook has to do
        return _without_filters()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != request["parent"]:  # it died before
        posix._exit(1)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    layers = []
    if "landlock" in request["layers"] and _landlock(libc, ctypes):
        layers.append("landlock")
    if "seccomp" in request["layers"] and _seccomp(libc, ctypes, request["filter"]):
        layers.append("seccomp")
    return layers if "seccomp" in layers else [*layers, *_without_filters()]


def _landlock(libc: Any, ctypes: Any) -> bool:
    """Files may be read in the standard library and the system's libraries, and nowhere else (Landlock, Linux 5.13)."""
    create, add, restrict = _LANDLOCK
    handled = ctypes.c_uint64(_FILE_RIGHTS)
    ruleset = libc.syscall(create, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    for path in (*sys.path, *_LIBRARIES):
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError:  # does not exist here
            continue
        rule = _READ.to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
        libc.syscall(add, ruleset, 1, rule, 0)
        os.close(folder)
    held = libc.syscall(restrict, ruleset, 0) == 0
    os.close(ruleset)
    return held


def _seccomp(libc: Any, ctypes: Any, program: bytes) -> bool:
    if not program:
        return False

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]

    held = Program(len(program) // 8, program)
    return libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(held), 0, 0) == 0


def _without_filters() -> list[str]:
    """The doors that no audit event guards, where the kernel does not guard them either."""
    import _posixsubprocess

    def refused(*_: Any) -> None:
        posix._exit(FORBIDDEN)

    for module, names in (
        (_posixsubprocess, ("fork_exec",)),
        (posix, ("setsid", "setpgid", "mkfifo", "mknod", "chroot", "openpty", "memfd_create", "pidfd_open", "setuid", "nice")),
        (posix, ("setpriority", "sched_setaffinity", "sched_setscheduler", "sched_setparam")),
    ):
        for name in names:
            if hasattr(module, name):
                setattr(module, name, refused)
                if module is posix:
                    setattr(os, name, refused)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    return []


def _hook(roots: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """An audit hook that ends the process on every event that isn't known to be harmless.

    All that it uses is in its closure: the code may rebind builtins and the names of this module. It compares exact types
    only, so that it never calls a method of the code's.
    """
    kind, text, number, leave, harmless, modules = type, str, int, posix._exit, _HARMLESS, _MODULES
    sockets, modes, writes = (1, -1), ("r", "rb", "rt", None), os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

    def readable(path: object) -> bool:
        if kind(path) is number:
            return path in (0, 1, 2)
        if kind(path) is not text:
            return False
        if path == "/dev/stdin" or path[:1] == "<" and "/" not in path:  # a syntax error looks for the line in a file "<answer>"
            return True
        return path.startswith(roots) and "/../" not in path and "-packages/" not in path or f"{path}/" in roots

    def hook(event: str, details: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = details
            if not readable(path) or kind(path) is not number and (mode not in modes or kind(flags) is number and flags & writes):
                leave(FORBIDDEN)
        elif event == "import":
            if kind(details[0]) is not text or details[0].partition(".")[0] in modules:
                leave(FORBIDDEN)
        elif event in ("os.listdir", "os.scandir"):
            if not readable(details[0]):
                leave(FORBIDDEN)
        elif event == "socket.__new__":
            if details[1] not in sockets:
                leave(FORBIDDEN)
        elif not event.startswith(harmless):
            leave(FORBIDDEN)

    return hook


def _encoder(limit: int) -> Callable[[Any], str]:
    """Plain data as JSON: `{"i": hex}` is an int, `{"f": hex}` a float, `{"s": [...]}` a set, `{"d": [[key, value], ...]}` a dict.

    Raises ValueError for any other type, for subclasses too, for depth over 100 and for over `limit` values or characters.
    """
    kind, quote, to_hex, float_hex, bits, size, fault = type, encode_basestring_ascii, hex, float.hex, int.bit_length, len, ValueError
    left = [limit]

    def encode(value: Any, depth: int = 0) -> str:
        left[0] -= 1
        if left[0] < 0 or depth > 100:
            raise fault("too large")
        cls = kind(value)
        if value is None:
            return "null"
        if cls is bool:
            return "true" if value else "false"
        if cls is int:
            left[0] -= bits(value) // 4
            if left[0] < 0:
                raise fault("too large")
            return '{"i":"' + to_hex(value) + '"}'
        if cls is float:
            return '{"f":"' + float_hex(value) + '"}'
        if cls is str:
            left[0] -= size(value)
            if left[0] < 0:
                raise fault("too large")
            return quote(value)
        if cls is list or cls is tuple:
            return "[" + ",".join([encode(item, depth + 1) for item in value]) + "]"
        if cls is set:
            return '{"s":[' + ",".join([encode(item, depth + 1) for item in value]) + "]}"
        if cls is dict:
            return '{"d":[' + ",".join(["[" + encode(k, depth + 1) + "," + encode(v, depth + 1) + "]" for k, v in value.items()]) + "]}"
        raise fault("not plain data")

    return encode


if __name__ == "__main__":
    main()

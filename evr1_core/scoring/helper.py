"""One function in a process of its own, kept warm: for libraries that hostile input can make slow, huge or crash.

A reward that draws or parses with native code calls it through a `Helper`. A call that takes too long, needs too much memory
or ends the process is `Exceeded`; the process is then replaced by the next call. It ends with the process that owns it.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from evr1_core.plugins import resolve

CALLS, LEAN = 500, 512 << 20
"""After every so many calls a process that holds more memory than this is replaced: libraries leak."""
_LOAD_SECONDS = 60.0
_MAX_REPLY = 64 << 20
_BOOT = "import sys; sys.path[:] = {path!r}; from evr1_core.scoring.helper import serve; serve({fd}, {target!r}, {seconds}, {memory})"
_READY, _DONE, _REFUSED, _MEMORY, _BROKEN = b"r", b"d", b"v", b"m", b"b"


class Exceeded(Exception):
    """The input broke a bound: `cause` is timeout, memory or crash."""

    def __init__(self, cause: str) -> None:
        self.cause = cause
        super().__init__(cause)


class Helper:
    """`helper(request)` calls a function elsewhere. Usable from several threads.

    `target` (`package.module:name`) loads what the function needs and returns it: `() -> (bytes -> bytes)`. Loading is not counted.
    """

    def __init__(self, target: str, seconds: float, memory: int) -> None:
        """`seconds` is the time of one call, `memory` the address space of the process in bytes."""
        self.target, self.seconds, self.memory = target, seconds, memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._owner, self._calls = 0, 0
        atexit.register(self.close)

    def __call__(self, request: bytes) -> bytes:
        """Raises Exceeded; ValueError with the function's message where it refuses the input; ImportError when it can't be
        loaded; RuntimeError for any other exception of the function: a fault of its own."""
        with self._lock:
            connection = self._ready()
            self._calls += 1
            try:
                connection.send_bytes(request)
                if not connection.poll(self.seconds):
                    raise Exceeded("timeout")
                reply = connection.recv_bytes(_MAX_REPLY)
                if reply[:1] == _MEMORY:
                    raise Exceeded("memory")
            except Exceeded:
                self.close()
                raise
            except (EOFError, OSError) as fault:
                self.close()
                raise Exceeded("crash") from fault
        kind, content = reply[:1], reply[1:]
        if kind == _REFUSED:
            raise ValueError(content.decode())
        if kind == _BROKEN:
            raise RuntimeError(f"{self.target}: {content.decode()}")
        return content

    def prepare(self) -> None:
        """Start the process if there is none, so that a call need not. Raises ImportError."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End the process; the next call starts another."""
        if self._process and self._owner == os.getpid():
            self._process.kill()
            self._process.wait()
        if self._connection:
            self._connection.close()
        self._process = self._connection = None

    def _ready(self) -> Connection:
        if self._connection is None or self._owner != os.getpid() or self._has_leaked():
            self.close()
            self._start()
        assert self._connection is not None
        return self._connection

    def _has_leaked(self) -> bool:
        if self._calls < CALLS or self._process is None:
            return False
        self._calls = 0
        return resident_bytes(self._process.pid) > LEAN

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            boot = _BOOT.format(path=sys.path, fd=theirs.fileno(), target=self.target, seconds=self.seconds, memory=self.memory)
            self._process = subprocess.Popen(
                [sys.executable, "-c", boot],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"},
            )
        self._connection, self._owner, self._calls = Connection(ours.detach()), os.getpid(), 0
        try:
            first = self._connection.recv_bytes() if self._connection.poll(_LOAD_SECONDS) else b""
        except EOFError:
            first = b""
        if first[:1] != _READY:
            self.close()
            raise ImportError(first[1:].decode() or f"{self.target} did not load")


def resident_bytes(pid: int) -> int:
    """Memory that a process holds; 0 when it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * resource.getpagesize()


def serve(fd: int, target: str, seconds: float, memory: int) -> None:
    """The process: loads the function, limits itself, answers until the connection is closed."""
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    try:
        function = resolve(target)()
    except Exception as fault:
        connection.send_bytes(_BROKEN + str(fault).encode())
        return
    for kind, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    connection.send_bytes(_READY)
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        # The owner ends a late call. If the owner is gone, the kernel does: no handler, so no Python needed.
        signal.setitimer(signal.ITIMER_REAL, 2 * seconds + 5)
        try:
            reply = _DONE + function(request)
        except MemoryError:
            reply = _MEMORY
        except ValueError as fault:
            reply = _REFUSED + str(fault)[:300].encode("utf-8", "replace")
        except Exception as fault:
            reply = _BROKEN + f"{type(fault).__name__}: {fault}"[:300].encode("utf-8", "replace")
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(reply)

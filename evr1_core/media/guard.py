"""Decoding in a process that can be killed.

A decoder may hang, crash or eat all memory on a hostile file. So videos are decoded in a child process, started at the first need and
kept: it reads one request per line (JSON) and answers with a length (4 bytes), JSON and the raw frames. The child loads numpy, Pillow and
PyAV, nothing else, and never sees the caller's `__main__`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evr1_core.errors import MediaError
from evr1_core.media.plan import Plan

if TYPE_CHECKING:
    import numpy as np


class DecodeGuard:
    """A pool of decoding children, as many as there are callers at a time. Safe for threads and across forks."""

    def __init__(self, deadline: float, command: list[str] | None = None) -> None:
        self.deadline = deadline
        self.command = command or [sys.executable, "-m", "evr1_core.media.worker"]
        self.started = 0
        """Children that were started."""
        self._idle: list[subprocess.Popen[bytes]] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle, os.getpid())

    def decode(self, request: dict[str, Any], path: str) -> tuple[Plan, int, np.ndarray]:
        """(plan, rotation, frames) for a request as `worker.answer` reads it; no frames (0) when it asks for the plan only.

        Raises MediaError: what the child found, timeout (killed at the deadline), damaged (the child died).
        """
        child = self._take()
        try:
            answer, frames = self._ask(child, request, path)
        except BaseException:
            _end(child)
            raise
        with self._lock:
            self._idle.append(child)
        if "error" in answer:
            raise MediaError(path, answer["error"], answer["reason"])
        return _plan(answer["plan"]), answer["rotation"], frames

    def close(self) -> None:
        """End all idle children."""
        with self._lock:
            _end_all(self._idle, self._owner)

    def _take(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._owner != os.getpid():
                # After a fork the pipes belong to the parent process.
                self._idle.clear()
                self._owner = os.getpid()
                weakref.finalize(self, _end_all, self._idle, self._owner)
            while self._idle:
                child = self._idle.pop()
                if child.poll() is None:
                    return child
                _end(child)
            self.started += 1
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)

    def _ask(self, child: subprocess.Popen[bytes], request: dict[str, Any], path: str) -> tuple[dict[str, Any], np.ndarray]:
        import numpy as np

        assert child.stdin is not None and child.stdout is not None
        until = time.monotonic() + self.deadline
        try:
            child.stdin.write(json.dumps({**request, "deadline": self.deadline}).encode() + b"\n")
        except BrokenPipeError as error:
            raise MediaError(path, "damaged", f"the decoding process {_ended(child)}") from error
        length = int.from_bytes(self._read(child, 4, until, path), "little")
        answer = json.loads(self._read(child, length, until, path))
        frames = np.empty(answer.get("shape", [0, 3, 0, 0]), np.uint8)
        self._fill(child, frames.reshape(-1).data, until, path)
        return answer, frames

    def _read(self, child: subprocess.Popen[bytes], size: int, until: float, path: str) -> bytes:
        buffer = bytearray(size)
        self._fill(child, memoryview(buffer), until, path)
        return bytes(buffer)

    def _fill(self, child: subprocess.Popen[bytes], left: memoryview, until: float, path: str) -> None:
        assert child.stdout is not None
        while left:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise MediaError(path, "timeout", f"the decode did not end within {self.deadline:g} s and was killed")
            count = os.readv(child.stdout.fileno(), [left[: 2**20]])
            if not count:
                raise MediaError(path, "damaged", f"the decoding process {_ended(child)}")
            left = left[count:]


def _end_all(children: list[subprocess.Popen[bytes]], owner: int) -> None:
    """Also the finalizer of a guard: a forked copy of the owner leaves the children alone."""
    while children and owner == os.getpid():
        _end(children.pop())


def _plan(fields: dict[str, Any]) -> Plan:
    return Plan(**{**fields, "indices": tuple(fields["indices"]), "times": tuple(fields["times"])})


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def _ended(child: subprocess.Popen[bytes]) -> str:
    code = child.wait()
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"

"""Probing and decoding in a process that can be killed.

A decoder may hang, crash or eat all memory on a hostile file. So files are opened in a child process, started at the first need and
kept (what it is asked and answers: `worker`). The child loads numpy, Pillow and PyAV, nothing else, never sees the caller's
`__main__`, has an address space of `MEMORY` bytes, and ends when its caller does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evr1_core.errors import Evr1Error, MediaError
from evr1_core.media.plan import Plan
from evr1_core.media.worker import Request

if TYPE_CHECKING:
    import numpy as np

MEMORY = 4 * 2**30
"""Bytes of address space of a decoding process: several times what 8K video takes."""

MOST_REQUESTS = 10_000
"""Requests after which a child is replaced: what libraries leak bit by bit must not add up over a long run."""

START = 120.0
"""Seconds that a child has to load its libraries, on a slow disk too."""

Fill = Callable[[memoryview], None]


class Answer:
    """What came of one request, put together from the messages of `worker.perform`."""

    def __init__(self) -> None:
        self.info: dict[str, Any] = {}
        """Facts of the file, by the names of `MediaInfo`."""
        self.plan: Plan | None = None
        self.end: dict[str, Any] | None = None
        self._frames: np.ndarray | None = None
        self._count = 0

    @property
    def frames(self) -> np.ndarray:
        """uint8 [T, 3, H, W]: the frames that were sent."""
        assert self._frames is not None
        return self._frames[: self._count]

    def take(self, message: dict[str, Any], fill: Fill) -> None:
        """One message; `fill` writes the frame that follows it."""
        import numpy as np

        if "error" in message:
            self.end = message
        elif "plan" in message:
            fields = message["plan"]
            self.info, self.plan = message["info"], Plan(**{**fields, "indices": tuple(fields["indices"]), "times": tuple(fields["times"])})
        elif "frame" in message:
            if self._frames is None:
                assert self.plan is not None
                self._frames = np.empty((self.plan.frames, 3, self.plan.height, self.plan.width), np.uint8)
            fill(self._frames[self._count].reshape(-1).data)
            self._count += 1
        else:
            self.end = message["end"]


@dataclass(slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    lifeline: int
    """Our end of the pipe whose closing tells the child that its caller is gone."""
    served: int = 0

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        """Give back the descriptors."""
        os.close(self.lifeline)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def fill(self, left: memoryview, until: float) -> None:
        """Read from the child until the buffer is full. Raises TimeoutError and, when the child ended, EOFError."""
        assert self.process.stdout is not None
        answers = select.poll()
        answers.register(self.process.stdout, select.POLLIN)
        while left:
            if not answers.poll(1000 * max(0.0, until - time.monotonic())):
                raise TimeoutError
            count = os.readv(self.process.stdout.fileno(), [left[: 2**20]])
            if not count:
                raise EOFError
            left = left[count:]

    def ended(self) -> str:
        code = self.process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


class DecodeGuard:
    """A pool of decoding children, as many as there are callers at a time. Safe for threads, and across forks of a process whose other
    threads are idle (a lock that one of them holds stays locked in the copy)."""

    def __init__(self, deadline: float, command: list[str] | None = None, memory: int = MEMORY) -> None:
        self.deadline = deadline
        self.command = command or [sys.executable, "-P", "-m", "evr1_core.media.worker"]
        self.memory = memory
        self.started = 0
        """Children that were started."""
        self._idle: list[_Child] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        weakref.finalize(self, _end_all, self._idle, os.getpid())

    def ask(self, request: Request) -> Answer:
        """What a child finds.

        Raises MediaError: what the child found, timeout (killed at the deadline), damaged (the child died); Evr1Error: no child can
        be started.
        """
        child = self._take()
        try:
            answer = self._ask(child, request)
        except BaseException:
            child.end()
            if request.entry is not None:
                Path(request.entry.temporary).unlink(missing_ok=True)
            raise
        child.served += 1
        if child.served < MOST_REQUESTS:
            with self._lock:
                self._idle.append(child)
        else:
            child.end()
        assert answer.end is not None
        if "error" in answer.end:
            raise MediaError(request.path, answer.end["error"], answer.end["reason"])
        return answer

    def close(self) -> None:
        """End all idle children."""
        with self._lock:
            _end_all(self._idle, self._owner)

    def _take(self) -> _Child:
        with self._lock:
            if self._owner != os.getpid():
                self._forked()
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                child.end()
            self.started += 1
        return self._start()

    def _forked(self) -> None:
        """After a fork the children belong to the parent process: only our copies of the descriptors are closed."""
        for child in self._idle:
            child.close()
        self._idle.clear()
        self._owner = os.getpid()
        weakref.finalize(self, _end_all, self._idle, self._owner)

    def _start(self) -> _Child:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # The threads of a linear algebra library are of no use there and take address space.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [*self.command, str(self.memory), str(theirs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0,
                pass_fds=[theirs],
            )  # fmt: skip
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        child = _Child(process, ours)
        assert process.stdout is not None
        with contextlib.suppress(OSError):  # a short cut: a frame then takes one turn of writer and reader, not twelve
            fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, 2**20)
        try:
            child.fill(memoryview(bytearray(1)), time.monotonic() + START)
        except BaseException as error:
            child.end()
            if isinstance(error, TimeoutError | EOFError):
                raise self._broken(child.ended(), environment) from error
            raise
        return child

    def _broken(self, ended: str, environment: dict[str, str]) -> Evr1Error:
        """Why no child starts, in its own words; no file is to blame for that."""
        try:
            again = subprocess.run(
                [*self.command, str(self.memory), "0"], stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=START
            )  # fmt: skip
            said = again.stderr.decode(errors="replace").strip().splitlines()[-3:]
        except subprocess.TimeoutExpired:
            said = [f"nothing within {START:g} s"]
        return Evr1Error(
            f"the process that decodes media can't be started: it {ended}. It said: {' | '.join(said) or 'nothing'}. "
            "Mend the installation; all that it said is on stderr"
        )

    def _ask(self, child: _Child, request: Request) -> Answer:
        path, until = request.path, time.monotonic() + self.deadline
        assert child.process.stdin is not None
        answer = Answer()
        try:
            child.process.stdin.write(json.dumps({**asdict(request), "deadline": self.deadline}).encode() + b"\n")
            while answer.end is None:
                length = bytearray(4)
                child.fill(memoryview(length), until)
                text = bytearray(int.from_bytes(length, "little"))
                child.fill(memoryview(text), until)
                answer.take(json.loads(text), lambda buffer: child.fill(buffer, until))
        except TimeoutError as error:
            raise MediaError(path, "timeout", f"the decode did not end within {self.deadline:g} s and was killed") from error
        except (EOFError, BrokenPipeError) as error:
            raise MediaError(path, "damaged", f"the decoding process {child.ended()}") from error
        return answer


def _end_all(children: list[_Child], owner: int) -> None:
    """Also the finalizer of a guard: a forked copy of the owner leaves the children alone."""
    while children and owner == os.getpid():
        children.pop().end()

"""A scoring worker as its parent sees it: started, spoken to, and killed with everything that it started."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from evr1_core.scoring.helper import resident_bytes
from evr1_core.scoring.worker import Setup

_BOOT = "import sys; sys.path[:] = {path!r}; from evr1_core.scoring.worker import main; main({fd})"
_SECRET = re.compile(r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:_|$)", re.IGNORECASE)
"""Names of environment variables that a process which reads hostile text has no use for."""


class Died(Exception):
    """The worker is gone; the text says how."""


class Late(Exception):
    """The worker did not answer in time."""


class WorkerProcess:
    """One process, its connection and its last words."""

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        boot = _BOOT.format(path=sys.path, fd=theirs.fileno())
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        environment = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", boot],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # its group is killed with it
            env={**environment, **threads},
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._poller = select.poll()  # `Connection.poll` makes one for each call
        self._poller.register(self._connection.fileno(), select.POLLIN)
        self._said = 0  # bytes that it had written when it began with its item
        self.served = 0
        self.send(setup)

    @property
    def alive(self) -> bool:
        return self._end() is None

    def resident_bytes(self) -> int:
        """Memory that it holds; 0 when it has ended."""
        return resident_bytes(self._process.pid)

    def send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except (BrokenPipeError, ConnectionResetError) as fault:
            raise Died(self._epitaph()) from fault

    def receive(self, seconds: float) -> dict[str, Any]:
        try:
            if not self._poller.poll(1_000 * seconds):
                raise Late
            message = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError) as fault:
            raise Died(self._epitaph()) from fault
        self._said = message.get("said", self._said)
        return message

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # the whole group is gone already
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def dispose(self) -> None:
        """Kill it and free what we hold; only by the thread that talks to it."""
        self.kill()
        self._connection.close()
        self._log.close()

    def _epitaph(self) -> str:
        """How it ended, and the last line that it wrote since it began with its item."""
        until = time.monotonic() + 1
        while (end := self._end()) is None:
            if time.monotonic() > until:
                return "closed its connection"
            time.sleep(0.005)
        size = os.fstat(self._log.fileno()).st_size
        start = max(self._said, size - 4096)
        lines = os.pread(self._log.fileno(), size - start, start).decode("utf-8", "replace").strip().split("\n")
        return f"{end}: {lines[-1].strip()[:200]}" if lines[-1].strip() else end

    def _end(self) -> str | None:
        """How the process ended, None while it runs. It stays a zombie, so that its number still names its group."""
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # `kill` has waited for it
            return "killed"
        if ended is None:
            return None
        return f"exit code {ended.si_status}" if ended.si_code == os.CLD_EXITED else f"killed by {signal.Signals(ended.si_status).name}"

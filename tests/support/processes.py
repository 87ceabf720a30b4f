"""Processes of this machine that a test looks for, waits for and kills, and a Ray that `ray start` makes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

HEAD = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
"""Environment of a cluster for a test, and of a program that joins it."""


def alive(pids: Iterable[int]) -> list[int]:
    """Those that are there and have not ended."""
    found = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


def wait_for_end(pids: Sequence[int], seconds: float = 60.0, since: float | None = None) -> None:
    """`seconds` from now, or from `since` by the monotonic clock."""
    end = seconds + (time.monotonic() if since is None else since)
    while left := alive(pids):
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.2)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_with(text: str) -> list[int]:
    """Other processes that have a text in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if text.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
    return found


def named(pids: Iterable[int], *names: str) -> list[int]:
    """Those of these programs."""
    found = []
    for pid in pids:
        with suppress(OSError):
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            if program.rpartition("/")[2] in names:
                found.append(pid)
    return found


@contextmanager
def ray_head() -> Iterator[tuple[str, str]]:
    """A cluster of this machine that `ray start` makes, at free ports: its address, and what its processes have in their environment."""
    with tempfile.TemporaryDirectory(prefix="evr1-", ignore_cleanup_errors=True) as temp:
        ports = []
        for _ in range(2):
            with socket.socket() as made:
                made.bind(("", 0))
                ports.append(str(made.getsockname()[1]))
        options = ["--port", ports[0], "--ray-client-server-port", ports[1], "--min-worker-port", "0", "--max-worker-port", "0"]
        options += ["--include-dashboard", "false", "--temp-dir", temp, "--object-store-memory", "100000000", "--num-cpus", "2"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *options]
        environment = {**os.environ, **HEAD, "EVR1_TEST_HEAD": temp}
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stdout + done.stderr
            yield f"127.0.0.1:{ports[0]}", f"EVR1_TEST_HEAD={temp}"
        finally:
            kill(processes_with(f"EVR1_TEST_HEAD={temp}"))

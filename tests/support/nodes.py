"""Two Ray nodes on this machine, started as `evr1 launch --template ray-start` writes it and ended by their process ids."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from evr1_cli.main import main


class Nodes:
    """`bash SCRIPT head` and `bash SCRIPT worker ADDRESS`, each in a session of its own. `end()` is for a `finally`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.script = folder, folder / "job.sh"
        self.token = folder / "job.sh.token"
        self.started: list[subprocess.Popen[str]] = []
        self.address = ""
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_enable_open_telemetry": "0"}

    @property
    def joining(self) -> dict[str, str]:
        """The environment of a program that may join."""
        return {**self._environment, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}

    def start(self, before_worker: Sequence[str] = ()) -> None:
        """`before_worker` is put before the second node's command."""
        try:
            main(["launch", "--nodes", "2", "--gpus-per-node", "0", "--template", "ray-start", "--out", str(self.script), "--", "train"])
        except SystemExit as end:
            assert not end.code
        self._start(["bash", str(self.script), "head"], "head.log")
        self.address = self._wait_for("head.log", r"worker (\S+:\d+)", 60)
        self._wait_for("head.log", "Ray runtime started", 120)
        self._start([*before_worker, "bash", str(self.script), "worker", self.address], "worker.log")

    def wait_for_both(self) -> str:
        """The script's own wait; returns what it says."""
        waiting = re.search(r"<<'PYTHON'\n(.*?)\nPYTHON", self.script.read_text(), re.DOTALL)
        assert waiting
        code = f"{waiting[1]}\nprint('nodes', sum(node['Alive'] for node in ray.nodes()))\nray.shutdown()"
        command = [sys.executable, "-c", code, self.address, "2"]
        found = subprocess.run(command, capture_output=True, text=True, env=self.joining, timeout=150)
        assert found.returncode == 0, found.stderr + (self.folder / "worker.log").read_text(errors="replace")
        return found.stdout

    def end(self) -> list[int]:
        """SIGTERM to both, as Ctrl-C of a user's shell would be; returns processes that were left, which are killed."""
        left: list[int] = []
        for one in reversed(self.started):
            one.send_signal(signal.SIGTERM)
        for one in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(timeout=40)
            found = processes(one.pid)
            if found:
                os.killpg(one.pid, signal.SIGKILL)
            left += found
        return left

    def _start(self, command: list[str], log: str) -> None:
        with (self.folder / log).open("w") as file:
            self.started.append(
                subprocess.Popen(command, env=self._environment, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True)
            )

    def _wait_for(self, log: str, pattern: str, seconds: float) -> str:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, (self.folder / log).read_text(errors="replace"))
            if found:
                return found[found.lastindex or 0]
            time.sleep(0.2)
        raise AssertionError(f"{pattern!r} not in {(self.folder / log).read_text(errors='replace')[-2000:]}")


def processes(group: int) -> list[int]:
    """Living members of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(member) == group and state != "Z":
            found.append(int(path.parent.name))
    return found

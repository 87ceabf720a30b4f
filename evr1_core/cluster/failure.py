"""What is said when a worker fails: the rank and what it was doing first, then its last lines, then the traceback.

Also what can be found out about a process after its end: its log, its last state, and whether the kernel killed it for lack of memory.
The functions for that run on the worker's own machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evr1_core.errors import Evr1Error

SHOWN_LINES = 20
SHOWN_SAMPLES = 8
SHOWN_OTHERS = 8
TAIL_BYTES = 32768
STATE_BYTES = 4096
BEGIN = "== worker started"
"""Beginning of a line in a log: what stands before it is of an earlier process."""
CRASH = re.compile(r"^(\*\*\* SIG\w+ received|Fatal Python error: |terminate called after)")


@dataclass(frozen=True)
class Fault:
    """One rank's failure. Rank -1 is the cluster itself."""

    rank: int
    what: str
    """`raised ValueError: ...`, `was killed ...`, `hung for 1,800 s`."""
    node: str = ""
    phase: str = ""
    detail: str = ""
    samples: Sequence[str] = ()
    lines: Sequence[str] = ()
    """Last lines of its log."""
    traceback: str = ""
    """Of its exception, or the stack of its working thread where it hangs."""
    log: str = ""
    """The file on its node that holds all it printed."""
    consequence: bool = False
    """A broken connection or the like, which the end of another rank brings about."""
    at: float = 0.0
    """When the driver learnt of it, in seconds of its monotonic clock."""
    remedy: str = ""
    """What to do about it, where the worker knows."""

    def place(self) -> str:
        """`in update (micro-batch 3 of 7), samples a, b`"""
        text = f"in {self.phase}" if self.phase else "between two calls"
        if self.detail:
            text += f" ({self.detail})"
        if self.samples:
            more = len(self.samples) - SHOWN_SAMPLES
            text += f", samples {', '.join(self.samples[:SHOWN_SAMPLES])}" + (f" and {more} more" if more > 0 else "")
        return text


class WorkerFailure(Evr1Error):
    """A worker of a group failed, and the group is closed. `fault` is the cause, `others` came after it."""

    def __init__(self, group: str, size: int, fault: Fault, others: Sequence[Fault] = (), waiting: Sequence[str] = ()) -> None:
        self.group, self.size, self.fault, self.others, self.waiting = group, size, fault, tuple(others), tuple(waiting)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[type[WorkerFailure], tuple[Any, ...]]:
        return WorkerFailure, (self.group, self.size, self.fault, self.others, self.waiting)

    def _text(self) -> str:
        fault = self.fault
        node = f" on node {fault.node}" if fault.node else ""
        who = f"{self.group} workers: " if fault.rank < 0 else f"{self.group} rank {fault.rank} of {self.size}{node} "
        text = [f"{who}{fault.what}, {fault.place()}"]
        after = [f"rank {other.rank}{f' on node {other.node}' if other.node else ''} {_first(other.what)}" for other in self.others]
        text += [f"after that {line}" for line in after[:SHOWN_OTHERS]]
        if len(after) > SHOWN_OTHERS:
            text.append(f"and {len(after) - SHOWN_OTHERS} more ranks")
        text += self.waiting
        text += [fault.remedy] if fault.remedy else []
        if fault.lines:
            text += [f"its last lines ({fault.log}):", *(f"  | {line}" for line in fault.lines)]
        elif fault.log:
            text.append(f"it printed nothing ({fault.log})")
        if fault.traceback:
            text.append(fault.traceback.rstrip())
        return "\n".join(text)


def _first(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "failed"


def choose_cause(faults: Sequence[Fault]) -> tuple[Fault, list[Fault]]:
    """The fault that explains the others, and the others in their order: a rank's own error or end before broken connections."""
    ordered = sorted(faults, key=lambda fault: (fault.consequence, fault.at, fault.rank))
    return ordered[0], ordered[1:]


def ended(ray_text: str, remains: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a process died of, by what Ray says and by what it left behind (`remains`; None where its node does not answer)."""
    if remains is None or re.search(r"node has died|node was (terminated|dead)|node it was running on is dead|NodeDied", ray_text):
        return {"what": "is gone with its node", "traceback": ray_text}
    lines, crash = list(remains.get("lines", ())), remains.get("crash", "")
    rest = {"lines": lines, "traceback": crash}
    if remains.get("oom_kills", 0) > 0:
        return {"what": "was killed by the kernel for lack of memory (OOM killer, signal 9)", **rest}
    if re.search(r"memory monitor|low on memory|NODE_OUT_OF_MEMORY|OutOfMemory", ray_text):
        return {"what": "was killed by Ray's memory monitor for lack of memory", **rest, "traceback": ray_text}
    if crash:
        return {"what": f"crashed: {_first(crash).strip('* ')}", **rest}
    if "SIGTERM" in ray_text:
        return {"what": "was ended by signal 15 (SIGTERM)", **rest}
    if remains.get("alive"):
        return {"what": "lost its connection to this program, though its process lives", **rest, "traceback": ray_text}
    if re.search(r"End of file|Socket closed|reset by peer|connection error code", ray_text):
        return {"what": "was killed by signal 9, or left by os._exit: its process ended without a word", **rest}
    return {"what": "ended", **rest, "traceback": ray_text}


def remains(place: Mapping[str, Any]) -> dict[str, Any]:
    """What a process left on this machine: its last lines, its state, whether it crashed, and how many were killed for lack of memory."""
    log, pid = str(place["log"]), int(place["pid"])
    end = time.monotonic() + 2.0
    while (alive := process_start(pid) == place["started"] and _stat(pid)[0] != "Z") and time.monotonic() < end:
        time.sleep(0.1)  # it closes its connections before it is gone
    path = Path(log)
    lines = tail(path, None)
    start = next((number for number, line in enumerate(lines) if CRASH.match(line)), len(lines))
    state: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # it ended before its first state: the last heartbeat has to do
        state = json.loads(path.with_suffix(".state").read_text(encoding="utf-8"))
    crash = "\n".join(_crash(lines[start:]))
    return {
        "lines": lines[:start][-SHOWN_LINES:],
        "crash": crash,
        "state": state,
        "oom_kills": count_oom_kills() - int(place["oom_kills"]),
        "alive": alive,
    }


def _crash(lines: Sequence[str]) -> list[str]:
    """What a process wrote when a signal ended it: the reason, and the stack of the thread that it came from."""
    reason = next((line for line in lines if line.startswith("Fatal Python error")), lines[0] if lines else "")
    start = next((number for number, line in enumerate(lines) if line.startswith("Current thread")), None)
    if start is None:
        return list(lines[:SHOWN_LINES])
    end = next((number for number, line in enumerate(lines) if number > start and not line.strip()), len(lines))
    return [reason, *lines[start:end]]


def tail(path: Path | None, count: int | None = SHOWN_LINES) -> list[str]:
    """The last lines of a log, as far as they are of the last process that wrote it; None is all within the last bytes."""
    if path is None or not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    begin = max((number for number, line in enumerate(lines) if line.startswith(BEGIN)), default=-1)
    return lines[begin + 1 :][-count if count else 0 :]


def stacks(pid: int, started: str, log: str) -> dict[str, Any]:
    """State letter of a process of this machine that does not answer, and the stacks that it writes when asked by a signal."""
    if process_start(pid) != started:
        return {}
    letter = _stat(pid)[0]
    before = Path(log).stat().st_size if os.path.exists(log) else 0
    text = ""
    if letter not in "TtZ":
        os.kill(pid, signal.SIGUSR1)
        time.sleep(1.0)
        with Path(log).open("rb") as file:
            file.seek(before)
            text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    return {"letter": letter, "stack": text}


def end_processes(processes: Sequence[tuple[int, str]], seconds: float = 10.0) -> list[int]:
    """Wait until processes of this machine, given as (pid, start time), have ended; those that don't are killed, with their children.

    Returns the pids that had to be killed.
    """
    end = time.monotonic() + seconds
    left = list(processes)
    while left and time.monotonic() < end:
        left = [(pid, started) for pid, started in left if process_start(pid) == started]
        time.sleep(0.05 if left else 0)
    left = [(pid, started) for pid, started in left if _stat(pid)[0] != "Z"]
    for pid, started in processes:
        # Ray makes each worker the head of a process group: what it started ends with it.
        if process_start(pid) in (started, ""):
            with suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(pid, signal.SIGKILL)
    return [pid for pid, _ in left]


def process_start(pid: int) -> str:
    """When a process of this machine started, in the kernel's ticks; empty where there is none. Pid and start name one process for good."""
    return _stat(pid)[1]


def _stat(pid: int) -> tuple[str, str]:
    """State letter and start time; see proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]


def count_oom_kills() -> int:
    """How many processes the kernel of this machine has killed for lack of memory since it started."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

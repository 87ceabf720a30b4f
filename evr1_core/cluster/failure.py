"""What is said when a worker fails: the rank and what it was doing first, then its last lines, then the traceback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from evr1_core.errors import Evr1Error


@dataclass(frozen=True)
class Fault:
    """One rank's failure."""

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
    consequence: bool = field(default=False)
    """A broken connection or the like, which the death of another rank brings about."""
    at: float = 0.0
    """When the driver learnt of it, in seconds of its monotonic clock."""

    def place(self) -> str:
        """`in update (micro-batch 3 of 7), samples a, b`"""
        parts = f"in {self.phase}" if self.phase else "between two calls"
        if self.detail:
            parts += f" ({self.detail})"
        if self.samples:
            more = len(self.samples) - SHOWN_SAMPLES
            parts += f", samples {', '.join(self.samples[:SHOWN_SAMPLES])}" + (f" and {more} more" if more > 0 else "")
        return parts


SHOWN_SAMPLES = 8


class WorkerFailure(Evr1Error):
    """A worker of a group failed, and the group is closed. `fault` is the cause, `others` came after it."""

    def __init__(self, group: str, size: int, fault: Fault, others: Sequence[Fault] = (), waiting: str = "") -> None:
        self.group, self.size, self.fault, self.others, self.waiting = group, size, fault, tuple(others), waiting
        super().__init__(self._text())

    def _text(self) -> str:
        fault = self.fault
        node = f" on node {fault.node}" if fault.node else ""
        parts = [f"{self.group} rank {fault.rank} of {self.size}{node} {fault.what}, {fault.place()}"]
        parts += [f"also rank {other.rank}{f' on node {other.node}' if other.node else ''}: {_first(other.what)}" for other in self.others]
        if self.waiting:
            parts.append(self.waiting)
        if fault.lines:
            parts += [f"its last lines ({fault.log}):", *(f"  | {line}" for line in fault.lines)]
        if fault.traceback:
            parts.append(fault.traceback.rstrip())
        return "\n".join(parts)


def _first(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "failed"


def choose_cause(faults: Sequence[Fault]) -> tuple[Fault, list[Fault]]:
    """The fault that explains the others, and the others in their order: a rank's own error or death before broken connections."""
    ordered = sorted(faults, key=lambda fault: (fault.consequence, fault.at, fault.rank))
    return ordered[0], ordered[1:]

"""Untrusted Python in a process of its own: one process per run, killed with its group, told nothing of what is expected.

What holds it (docs/sandbox.md): hard resource limits, an empty environment, a fresh folder, an interpreter without site packages,
Landlock (files) and seccomp (system calls) where the kernel has them, and an audit hook in any case. It lowers the risk of hostile
code; it doesn't make it safe.
"""

from __future__ import annotations

import json
import logging
import marshal
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evr1_core.scoring.reward import ScoringFailed
from evr1_core.scoring.sandbox_child import FORBIDDEN
from evr1_core.scoring.seccomp import filter_program

LAYERS = ("landlock", "seccomp")
"""What a kernel may offer beside limits and the audit hook."""
START_SECONDS = 20.0
"""Starting the interpreter is not the code's time; a machine on which it takes longer can't score."""
_CHILD = Path(__file__).with_name("sandbox_child.py")
_log = logging.getLogger(__name__)
_told: set[tuple[str, ...]] = set()

End = Literal["done", "error", "timeout", "output", "forbidden"]
_EXITED: dict[int, End] = {0: "done", FORBIDDEN: "forbidden"}
_KILLED: dict[int, End] = {signal.SIGSYS: "forbidden", signal.SIGXCPU: "timeout"}


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run."""

    seconds: float = 4.0
    """Wall clock, from the first line of the code on."""
    cpu: int = 4
    """CPU seconds of all threads."""
    memory: int = 512 << 20
    """Bytes of address space."""
    output: int = 64 << 10
    """Bytes of standard output; also the size of the value of an expression."""
    files: int = 64
    """Open files."""


@dataclass(frozen=True, slots=True)
class Run:
    """How one run ended."""

    end: End
    """`done`: exit status 0, and the value of the expression arrived where there was one. `error`: any other status, a
    signal, or a value that isn't plain data. `forbidden`: it tried what it must not."""
    stdout: bytes = b""
    value: Any = None
    """Plain data: None, bool, int, float, str, list, set of hashable plain data, dict. Tuples arrive as lists."""
    layers: tuple[str, ...] = ()
    """The layers of `LAYERS` that held the process."""


def run_python(
    code: str, *, expression: str | None = None, stdin: str = "", limits: Limits | None = None, layers: tuple[str, ...] = LAYERS
) -> Run:
    """Run `code`, as a program that reads `stdin`, or to get the value of `expression` in its module.

    `layers` leaves out what the kernel would add; the rest has to hold alone. Raises ScoringFailed (`sandbox_unavailable`) when no
    process can be started, which is not the code's fault.
    """
    limits = limits or Limits()
    secret = secrets.token_hex(16)
    request = {
        "code": code, "expression": expression, "secret": secret, "parent": os.getpid(), "layers": layers, "filter": filter_program(),
        "cpu": limits.cpu, "memory": limits.memory, "output": limits.output, "files": limits.files,
    }  # fmt: skip
    try:
        with ExitStack() as stack:
            return _started(request, stdin, limits, stack)
    except OSError as fault:  # no process, no folder, no descriptor left on this machine
        raise ScoringFailed(f"sandbox_unavailable: {fault}") from fault


def _started(request: dict[str, Any], stdin: str, limits: Limits, stack: ExitStack) -> Run:
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="evr1-sandbox-"))
    given = _memory_file(stack, marshal.dumps(request))
    typed = _memory_file(stack, stdin.encode("utf-8", "replace"))
    ours, theirs = os.pipe()
    stack.callback(os.close, ours)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-S", "-B", "-X", "utf8", str(_CHILD), str(given), str(theirs)],
            stdin=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(given, theirs),
            cwd=folder,
            env=_environment(),
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    stack.callback(_kill, process)
    assert process.stdout is not None
    stack.enter_context(process.stdout)
    return _Watch(process, ours, request["secret"], limits).run(expects_value=request["expression"] is not None)


class _Watch:
    """Reads what one process sends until it ends or has to be ended."""

    def __init__(self, process: subprocess.Popen[bytes], result: int, secret: str, limits: Limits) -> None:
        assert process.stdout is not None
        self.process, self.secret, self.limits = process, secret.encode(), limits
        self.result, self.stdout = bytearray(), bytearray()
        self.pipes = {result: self.result, process.stdout.fileno(): self.stdout}
        self.deadline = time.monotonic() + START_SECONDS
        self.layers: tuple[str, ...] | None = None

    def run(self, expects_value: bool) -> Run:
        end = self._read() or self._ended()
        if self.layers is None:
            raise ScoringFailed(f"sandbox_unavailable: the interpreter did not start ({end})")
        if end == "done" and expects_value:
            end, value = self._value()
            return Run(end, bytes(self.stdout), value, self.layers)
        return Run(end, bytes(self.stdout), None, self.layers)

    def _read(self) -> End | None:
        """None when both pipes are closed."""
        with selectors.DefaultSelector() as selector:
            for pipe in self.pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(self.deadline - time.monotonic(), 0))
                if not ready:
                    return "timeout"
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fd)
                        continue
                    self.pipes[key.fd] += data
                    if len(self.stdout) > self.limits.output or len(self.result) > 16 * self.limits.output:
                        return "output"
                if self.layers is None:
                    self._look_whether_ready()
                elif time.monotonic() > self.deadline:
                    return "timeout"
        return None

    def _look_whether_ready(self) -> None:
        line, found, _ = self.result.partition(b"\n")
        if found and line.startswith(self.secret + b" ready "):
            self.layers = tuple(line.decode().split(" ")[2].split(",")) if not line.endswith(b" ") else ()
            self.deadline = time.monotonic() + self.limits.seconds
            _tell(self.layers)

    def _ended(self) -> End:
        """The exit status, once there is one. The process stays a zombie, so that its number still names its group."""
        while (ended := os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is None:
            if time.monotonic() > self.deadline:
                return "timeout"
            time.sleep(0.001)
        return (_EXITED if ended.si_code == os.CLD_EXITED else _KILLED).get(ended.si_status, "error")

    def _value(self) -> tuple[End, Any]:
        """The value, if exactly one was sent and nothing else."""
        lines = bytes(self.result).split(b"\n")
        start = self.secret + b" value "
        if len(lines) != 3 or lines[2] or not lines[1].startswith(start):
            return "error", None
        try:
            return "done", _plain(json.loads(lines[1][len(start) :]))
        except (ValueError, TypeError, KeyError, RecursionError):  # forged
            return "error", None


def _plain(value: Any) -> Any:
    """The value behind the child's encoding."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "i":
        return int(inside, 16)
    if kind == "f":
        return float.fromhex(inside)
    if kind == "s":
        return {_hashable(_plain(item)) for item in inside}
    if kind == "d":
        return {_hashable(_plain(key)): _plain(item) for key, item in inside}
    raise ValueError(kind)


def _hashable(value: Any) -> Any:
    return tuple(_hashable(item) for item in value) if isinstance(value, list) else value


def _memory_file(stack: ExitStack, content: bytes) -> int:
    """A descriptor from which `content` can be read; no name, no disk."""
    fd = os.memfd_create("evr1-sandbox")
    stack.callback(os.close, fd)
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _environment() -> dict[str, str]:
    """Nothing of ours; the child removes even this. A fixed hash seed makes the order of sets the same in every run."""
    libraries = os.environ.get("LD_LIBRARY_PATH")  # some interpreters don't start without
    return {"PYTHONHASHSEED": "0", **({"LD_LIBRARY_PATH": libraries} if libraries else {})}


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tell(layers: tuple[str, ...]) -> None:
    missing = tuple(layer for layer in LAYERS if layer not in layers)
    if missing and missing not in _told:
        _told.add(missing)
        _log.warning("sandbox: no %s on this machine; limits and the audit hook hold untrusted code alone", " and no ".join(missing))

"""The Ray actor that holds one worker of a group: it makes the worker, runs its calls, and answers while a call runs.

Values travel as pickled bytes, which are counted. Errors travel as plain values, since not all exceptions can be pickled.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import queue
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from evr1_core.cluster.rank import Progress, Rank
from evr1_core.errors import RequestError

TAIL_BYTES = 8192

BROKEN = ("connection closed", "connection reset", "broken pipe", "socket timeout", "connection refused", "nccl", "gloo")
"""Words of the errors that ranks report when another one of their collective is gone."""


class Host:
    """Made by Ray in a process of its own. `call` runs on one thread for life; `status` is answered by another one."""

    def __init__(self, paths: list[str]) -> None:
        sys.path.extend(path for path in paths if path not in sys.path)
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C is for the driver, which saves and then closes its workers.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._progress = Progress()
        self._base = 0
        self._log: Path | None = None
        self._worker: Any = None
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="work", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            work, future = self._work.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def place(self) -> dict[str, Any]:
        """Where this process is: node id and address, GPU, pid."""
        import ray

        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU", [])
        return {
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "host": socket.gethostname(),
            "gpus": list(gpus),
            "pid": os.getpid(),
            "port": free_port(),
        }

    def make(self, target: str, rank: dict[str, Any], arguments: bytes, logs: str, name: str) -> tuple[str, Any]:
        """Make `target(Rank(**rank), **arguments)`."""
        self._log = open_log(Path(logs), f"{name}-rank-{rank['rank']}.log")
        faulthandler.enable()

        def work() -> None:
            module, _, attribute = target.partition(":")
            made = getattr(importlib.import_module(module), attribute)
            self._worker = made(Rank(**rank, progress=self._progress), **pickle.loads(arguments))

        return self._outcome("start", "", work)

    def call(self, method: str, phase: str, common: bytes, own: bytes) -> tuple[str, Any]:
        """`method(*common, *own)` of the worker: ("value", pickled result), or ("request" | "error", the error as plain values)."""
        return self._outcome(phase, method, lambda: getattr(self._worker, method)(*pickle.loads(common), *pickle.loads(own)))

    def _outcome(self, phase: str, detail: str, work: Callable[[], Any]) -> tuple[str, Any]:
        def all_of_it() -> bytes:
            self._progress.enter(phase, detail=detail)
            return pickle.dumps(work(), protocol=5)

        future: Future[Any] = Future()
        self._work.put((all_of_it, future))
        error = future.exception()
        if error is None:
            return "value", future.result()
        if isinstance(error, RequestError):
            return "request", str(error)
        return "error", {**self.status(), **describe(error)}

    def status(self) -> dict[str, Any]:
        """What the worker is doing, the last lines it printed, and the stack of its working thread. Plain values."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return {**self._progress.state(), "lines": tail(self._log), "log": str(self._log or ""), "stack": stack}


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain values."""
    text = str(error)
    connection = isinstance(error, ConnectionError) or any(word in text.lower() for word in BROKEN)
    return {
        "what": f"raised {type(error).__name__}: {text}",
        "traceback": "".join(traceback.format_exception(error)),
        "consequence": connection and isinstance(error, (RuntimeError, OSError)),
    }


def open_log(folder: Path, name: str) -> Path:
    """Send all that this process prints to a file of its own; below the temporary folder where `folder` can't be written on this node."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / name
        file = path.open("ab", buffering=0)
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="evr1-logs-")) / name
        file = path.open("ab", buffering=0)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    file.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    return path


def tail(path: Path | None, count: int = 20) -> list[str]:
    """The last lines of a file."""
    if path is None or not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]


def free_port() -> int:
    """A port that the system gives out on this machine."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as made:
        made.bind(("", 0))
        return int(made.getsockname()[1])

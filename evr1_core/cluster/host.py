"""The Ray actor that holds one worker of a group: it makes the worker, runs its calls, and answers while a call runs.

Values travel as pickled bytes, which are counted. Errors travel as plain values, since not all exceptions can be pickled.
What the worker prints and what it is doing are kept in two files, which outlive a process that is killed at any moment.
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
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

from evr1_core.cluster.failure import BEGIN, STATE_BYTES, process_start, tail
from evr1_core.cluster.rank import Progress, Rank
from evr1_core.errors import RequestError
from evr1_core.record.files import to_json

BROKEN = ("connection closed", "connection reset", "broken pipe", "socket timeout", "connection refused", "nccl", "gloo")
"""Words of the errors that ranks report when another one of their collective is gone."""


class WrittenProgress(Progress):
    """Progress that is also in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._write()

    def enter(self, phase: str, sample_ids: Sequence[str] = (), detail: str = "") -> None:
        super().enter(phase, sample_ids, detail)
        self._write()

    def _write(self) -> None:
        state = self.state()
        text = to_json(state).encode("utf-8", "backslashreplace")
        if len(text) > STATE_BYTES:
            text = to_json({**state, "detail": str(state["detail"])[:200], "samples": []}).encode("utf-8", "backslashreplace")
        os.pwrite(self._file, text.ljust(STATE_BYTES), 0)


class Host:
    """Made by Ray in a process of its own. The worker lives on one thread; `status` and `look` are answered by another one."""

    def __init__(self, folder: str, paths: list[str]) -> None:
        if os.path.isdir(folder):
            os.chdir(folder)  # a relative path means what it means in the program that opened the group
        sys.path.extend(path for path in paths if path not in sys.path)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which saves and then closes its workers
        self._progress = Progress()
        self._log: Path | None = None
        self._store: Any = None
        self._worker: Any = None
        self._base = 0
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
        """Where this process is."""
        import ray

        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "address": ray.util.get_node_ip_address(),
            "host": socket.gethostname(),
            "gpus": [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])],
            "pid": os.getpid(),
            "started": process_start(os.getpid()),
        }

    def prepare(self, folder: str, name: str, size: int, timeout: float) -> dict[str, Any]:
        """Open the log; with a size, also open the store through which that many processes meet, at a port that the system gives out."""
        path = open_log(Path(folder), f"{name}.log")
        self._log, self._progress = path, WrittenProgress(path.with_suffix(".state"))
        import ray
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        port = 0
        if size:
            address, own = ray.util.get_node_ip_address(), timedelta(seconds=timeout)
            self._store = TCPStore(address, 0, size, is_master=True, timeout=own, wait_for_workers=False)
            port = self._store.port
        return {"log": str(path), "port": port}

    def make(self, target: str, rank: Mapping[str, Any], arguments: bytes) -> tuple[str, Any]:
        """Make `target(Rank(**rank), **arguments)`."""

        def work() -> None:
            module, _, attribute = target.partition(":")
            made = getattr(importlib.import_module(module), attribute)
            self._worker = made(Rank(**rank, progress=self._progress), **pickle.loads(arguments))

        return self._outcome("start", target.partition(":")[2], work)

    def call(self, method: str, phase: str, common: bytes, own: bytes) -> tuple[str, Any]:
        """`method(*common, *own)` of the worker: ("value", pickled result), or ("request" | "error", the error as plain values)."""
        return self._outcome(phase, method, lambda: getattr(self._worker, method)(*pickle.loads(common), *pickle.loads(own)))

    def _outcome(self, phase: str, detail: str, work: Callable[[], Any]) -> tuple[str, Any]:
        def whole() -> bytes:
            self._base = int(str(self._progress.state()["steps"]))
            self._progress.enter(phase, detail=detail)
            return pickle.dumps(work(), protocol=5)

        future: Future[Any] = Future()
        self._work.put((whole, future))
        error = future.exception()
        if error is None:
            return "value", future.result()
        sys.stdout.flush()
        if isinstance(error, RequestError):
            return "request", str(error)
        remedy = getattr(self._worker, "remedy", lambda error: "")
        return "error", {**self.status(), "lines": tail(self._log), **describe(error), "remedy": remedy(error)}

    def status(self) -> dict[str, Any]:
        """What the worker is doing; steps are counted from the beginning of the call."""
        state = self._progress.state()
        return {**state, "steps": int(str(state["steps"])) - self._base}

    def look(self) -> dict[str, Any]:
        """Status, the last lines, and the stack of the working thread."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
        return {**self.status(), "lines": tail(self._log), "stack": stack}


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain values, without the frames of this file."""
    text = str(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    connection = isinstance(error, (RuntimeError, OSError)) and any(word in text.lower() for word in BROKEN)
    return {
        "what": f"raised {type(error).__name__}" + (f": {text}" if text else ""),
        "traceback": "".join(traceback.format_exception(type(error), error, frames)),
        "consequence": connection or isinstance(error, ConnectionError),
    }


def open_log(folder: Path, name: str) -> Path:
    """Send all that this process prints to a file; below the temporary folder where `folder` can't be written on this node."""
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
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False, errors="backslashreplace") for number in (1, 2))
    print(f"{BEGIN} {time.strftime('%Y-%m-%d %H:%M:%S')}, process {os.getpid()} on {socket.gethostname()}", flush=True)
    faulthandler.enable(sys.stderr)
    # Stacks of a process whose Python is stuck in a call that never gives back its lock: `kill -USR1 PID` writes them into the log.
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    return path

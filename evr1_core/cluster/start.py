"""Ray for a run: an existing cluster is joined, else one is started on this machine and shut down again."""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error, RequestError

_log = logging.getLogger(__name__)

GIB = 1024**3
OBJECT_STORE_GIB = 0.5
"""Texts and token ids are small; Ray's own default takes 30% of the memory."""
START_SECONDS = 300.0
"""Time to start or join Ray."""
JOIN_SECONDS = 5.0
LONGEST_TEMP_DIR = 44
"""Ray puts sockets below it, whose whole path may have 107 bytes."""

_started = False


def start_ray(section: ClusterSection) -> bool:
    """Join `section.address` or RAY_ADDRESS, else start Ray here. True where this call started it; nothing happens where Ray already runs.

    What is started here ends with this program, however it ends; a cluster that was joined stays as it is.
    Raises RequestError where Ray is missing or no cluster answers.
    """
    try:
        import ray
    except ImportError as error:
        raise RequestError("cluster.backend=ray needs Ray, which is not installed: pip install 'evr1[ray]'") from error
    address = section.address or os.environ.get("RAY_ADDRESS") or "local"
    if ray.is_initialized():
        if answers(ray.get_runtime_context().gcs_address):
            return False
        _check(address)
        _shut_down()  # its head is gone, and a later one is there
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray aborts a program a minute after its head is gone. Calls of worker groups notice that earlier, and say so.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")
    if address == "local":
        _start(section)
    else:
        _join(address)
    return address == "local"


def stop_ray() -> None:
    """Shut down Ray where this program started it."""
    global _started
    if _started:
        _shut_down()
        _started = False


def _shut_down() -> None:
    import ray

    if _started and head_is_gone():
        inside: Any = importlib.import_module("ray._private.worker")
        # Its other processes would wait for the head, and Ray for them.
        inside._global_node.kill_all_processes(check_alive=False, allow_graceful=False)
    ray.shutdown()


def _start(section: ClusterSection) -> None:
    global _started
    # Ray starts its processes at a niceness of 15: on a busy machine the scorers of this program would starve the workers.
    os.environ.setdefault("RAY_worker_niceness", "0")
    options: dict[str, Any] = {"object_store_memory": int((section.object_store_gib or OBJECT_STORE_GIB) * GIB)}
    if section.temp_dir is not None:
        folder = section.temp_dir.absolute()
        if len(str(folder)) > LONGEST_TEMP_DIR:
            raise RequestError(
                f"cluster.temp_dir={folder}: sockets are made below it, name a path of at most {LONGEST_TEMP_DIR} characters"
            )
        folder.mkdir(parents=True, exist_ok=True)
        options["_temp_dir"] = str(folder)
    if section.spill_dir is not None:
        section.spill_dir.mkdir(parents=True, exist_ok=True)
        folder = {"type": "filesystem", "params": {"directory_path": str(section.spill_dir.absolute())}}
        options["_system_config"] = {"object_spilling_config": json.dumps(folder)}
    try:
        _init({"address": "local", "include_dashboard": False, **options})
    except Exception as error:
        raise Evr1Error(f"Ray did not start on this machine: {type(error).__name__}: {error}") from error
    if not _started:
        atexit.register(stop_ray)
    _started = True


def _check(address: str) -> None:
    """Raises RequestError where no head answers at an address to join."""
    if "://" in address:
        raise RequestError(f"Ray address {address}: name the head itself, HOST:PORT, without a scheme")
    if address not in ("auto", "local") and not answers(address):
        raise RequestError(f"no Ray cluster answers at {address}: start one (`ray start --head`), or name another cluster.address")


def _join(address: str) -> None:
    _check(address)
    try:
        _init({"address": address})
    except Exception as error:
        causes = str(error) + str(error.__cause__)
        token = "AuthToken" in causes or "AuthenticationError" in causes
        remedy = "; the cluster asks for its token: set RAY_AUTH_MODE=token, see Ray's page on token authentication" if token else ""
        raise RequestError(f"no Ray cluster could be joined at {address}: {error}{remedy}") from error


def _init(options: Mapping[str, Any]) -> None:
    import ray

    # Ray prints a text of its own when a worker dies ("... End of file. Some common causes ..."), and has no switch for it.
    inside: Any = importlib.import_module("ray._private.worker")
    inside.print_to_stdstream = lambda data, ignore_prefix=False: _log.info("Ray: %s", " ".join(data.get("lines", ())))
    generator = random.getstate()  # Ray draws from it, and it is the run's: equal seeds, equal runs
    try:
        _on_lasting_thread(lambda: ray.init(log_to_driver=False, logging_level=logging.ERROR, namespace="evr1", **options))
    finally:
        random.setstate(generator)
        _take_back_sigterm()


def _take_back_sigterm() -> None:
    """Ray puts a handler below Python's that prints stacks and aborts the program 3 s after a SIGTERM, while its step is being finished."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _on_lasting_thread(work: Callable[[], Any]) -> None:
    """Run it on a thread that lives as long as this program.

    The kernel ends Ray's processes with the thread that started them. Besides, Ray replaces the SIGTERM handler of a main thread.
    """
    done, errors = threading.Event(), []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()
        threading.Event().wait()

    threading.Thread(target=run, name="ray", daemon=True).start()
    if not done.wait(START_SECONDS):
        raise Evr1Error(f"Ray did not answer in {START_SECONDS:.0f} s: see its logs, below {tempfile.gettempdir()}/ray or cluster.temp_dir")
    if errors:
        raise errors[0]


def answers(address: str, timeout: float = JOIN_SECONDS) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise RequestError(f"Ray address {address}: expected HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except OSError:
        return False
    return True


def head_is_gone() -> bool:
    """Whether this program is in a cluster whose head does not answer: Ray would then wait for it at the end of the program."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and not answers(ray.get_runtime_context().gcs_address, 2.0)


def count_gpus() -> int:
    """GPUs of the cluster that this program has joined or started."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))

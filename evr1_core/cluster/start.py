"""Ray for a run: an existing cluster is joined, else one is started on this machine and shut down again."""

from __future__ import annotations

import atexit
import json
import logging
import os
from typing import Any

from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import RequestError

GIB = 1024**3
OBJECT_STORE_GIB = 0.5
"""Texts and token ids are small; Ray's own default takes 30% of the memory."""


def start_ray(section: ClusterSection) -> bool:
    """Join `section.address` or RAY_ADDRESS, else start Ray here. True where this call started it; nothing happens where Ray already runs.

    Raises RequestError where Ray is missing or no cluster answers.
    """
    try:
        import ray
    except ImportError as error:
        raise RequestError("cluster.backend=ray needs Ray, which is not installed: pip install 'evr1[ray]'") from error
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "evr1"}
    address = section.address or os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, **common)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise RequestError(f"no Ray cluster answers at {address}: {error}") from error
        return False
    # Ray starts its processes at a niceness of 15: on a busy machine the scorers of this program would starve the workers.
    os.environ.setdefault("RAY_worker_niceness", "0")
    options: dict[str, Any] = {"object_store_memory": int((section.object_store_gib or OBJECT_STORE_GIB) * GIB)}
    if section.temp_dir is not None:
        options["_temp_dir"] = str(section.temp_dir.absolute())
    if section.spill_dir is not None:
        folder = {"type": "filesystem", "params": {"directory_path": str(section.spill_dir.absolute())}}
        options["_system_config"] = {"object_spilling_config": json.dumps(folder)}
    ray.init(address="local", include_dashboard=False, **options, **common)
    atexit.register(ray.shutdown)
    return True

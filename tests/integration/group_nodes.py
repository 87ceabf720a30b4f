"""A cluster of two nodes on this machine, with GPUs that Ray only counts: where ranks stand, and what the end of a node looks like.

`python -m tests.integration.group_nodes FOLDER` prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from evr1_core.cluster.group import WorkerGroup
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error

TARGET = "tests.integration.faults:Worker"


def main(folder: str) -> None:
    import ray
    from ray.cluster_utils import Cluster

    options: dict[str, Any] = {"num_cpus": 1, "num_gpus": 2, "object_store_memory": 10**8}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    try:
        second = cluster.add_node(**options)
        section = ClusterSection(address=cluster.address)

        def group(size: int, name: str) -> WorkerGroup:
            logs = Path(folder) / "logs"
            return WorkerGroup.open(TARGET, {"join": False}, size=size, device="cuda", section=section, logs=logs, name=name)

        workers = group(4, "policy")
        found: dict[str, Any] = {"own": ray.get_runtime_context().get_node_id()}
        found["places"] = workers.places
        found["local"] = [place["local_rank"] for place in workers.call("place")]
        for size in (5, 1):
            try:
                group(size, "rollout")
            except Evr1Error as error:
                found[f"with {size}"] = str(error)
        threading.Thread(target=lambda: (time.sleep(3.0), cluster.remove_node(second, allow_graceful=False)), daemon=True).start()
        try:
            workers.call("nap", 300.0, phase="update")
        except Evr1Error as error:
            found["failure"] = str(error)
        print(json.dumps(found), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Checks of a whole cluster: those of a machine on every node, and what differs between nodes."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_core.doctor.finding import Finding, Wanted
from evr1_core.doctor.machine import examine

Ask = Callable[..., list[Any]]
"""Calls a function of this module on each node: its value, or the error in its place."""

CLOCK = 1.0
"""Seconds that clocks may differ: files are compared by their times."""
DEADLINE = 300.0
"""Seconds that one node may take."""


def examine_cluster(wanted: Wanted, address: str) -> list[Finding]:
    """Findings of every node that Ray at `address` has, then those between nodes. Raises RequestError where no cluster answers.

    A node that can't be asked is a finding. The tasks ask for no CPU and no GPU, so nodes that are busy are examined too.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from evr1_core.cluster.start import start_ray
    from evr1_core.config.cluster import ClusterSection

    start_ray(ClusterSection(backend="ray", address=address))
    paths = [os.getcwd() if path == "" else path for path in sys.path]
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    titles = [f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:6]})" for node in nodes]

    def ask(function: Any, *arguments: Any) -> list[Any]:
        remote: Any = ray.remote
        task = remote(num_cpus=0, max_retries=0)(_there)
        calls = [task.options(scheduling_strategy=place).remote(paths, function.__name__, arguments) for place in places]
        found = []
        for call in calls:
            try:
                found.append(ray.get(call, timeout=DEADLINE))
            except Exception as error:  # a node that can't be asked is a finding, not the end
                found.append(error)
        return found

    return compare(wanted, titles, ask)


def compare(wanted: Wanted, titles: Sequence[str], ask: Ask) -> list[Finding]:
    """Findings of the nodes named `titles`, then those between them."""
    answers = ask(on_node, wanted)
    findings: list[Finding] = []
    facts: dict[str, list[Finding]] = {}
    for title, answer in zip(titles, answers, strict=True):
        if isinstance(answer, Exception):
            text = str(answer).strip().splitlines()[-1] if str(answer).strip() else type(answer).__name__
            findings.append(Finding("node", "fault", f"can't be examined: {text}", "evr1 must be installed there as here", title))
            continue
        named = [replace(one, node=title) for one in answer]
        findings += named
        for one in named:
            facts.setdefault(one.check, []).append(one)
    findings += differences(facts)
    findings += [_clocks(titles, ask), *_shared(wanted, titles, ask)]
    return findings


def _there(paths: Sequence[str], name: str, arguments: Sequence[Any]) -> Any:
    """Runs on a node: what could be imported by the program that asks can be imported here, as far as it is there."""
    sys.path[:] = [*sys.path, *(path for path in paths if path not in sys.path)]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # older versions of Ray hide GPUs from tasks that ask for none
        del os.environ["CUDA_VISIBLE_DEVICES"]
    import evr1_core.doctor.nodes as here

    return getattr(here, name)(*arguments)


def on_node(wanted: Wanted) -> list[Finding]:
    return examine(wanted)


def now() -> float:
    return time.time()


def put(folder: str, name: str) -> str:
    """Writes a small file; returns what went wrong."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / name).write_text(socket.gethostname(), encoding="utf-8")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def sees(folder: str, name: str) -> bool:
    for _ in range(20):  # a network file system may answer from its cache for a moment
        if name in (os.listdir(folder) if Path(folder).is_dir() else ()):
            return True
        time.sleep(0.25)
    return False


def remove(folder: str, name: str) -> None:
    (Path(folder) / name).unlink(missing_ok=True)


def differences(found: dict[str, list[Finding]]) -> list[Finding]:
    """A finding for each fact that isn't the same on all nodes."""
    findings = []
    for check, ones in found.items():
        for key in sorted({key for one in ones for key in one.facts}):
            values: dict[str, list[str]] = {}
            for one in ones:
                values.setdefault(str(one.facts.get(key, "missing")), []).append(one.node)
            if len(values) > 1:
                text = "; ".join(f"{value} on {', '.join(nodes)}" for value, nodes in sorted(values.items()))
                state = "fault" if check == "versions" else "warning"
                findings.append(Finding(f"same {check}", state, f"{key}: {text}", "install the same on every node"))
    return findings or [Finding("same nodes", "ok", "packages, GPUs and decoders are the same on all nodes")]


def _clocks(titles: Sequence[str], ask: Ask) -> Finding:
    """A node's clock is compared with the time here at the middle of the question."""
    apart: dict[str, str] = {}
    ask(now)  # the first question starts a process
    before = time.time()
    answers = ask(now)
    middle, error = (before + time.time()) / 2, (time.time() - before) / 2
    for title, answer in zip(titles, answers, strict=True):
        if not isinstance(answer, float):
            apart[title] = "did not answer"
        elif abs(answer - middle) > CLOCK + error:
            apart[title] = f"{answer - middle:+.1f} s"
    if apart:
        text = "; ".join(f"{title} {what}" for title, what in apart.items())
        return Finding("clocks", "warning", text, "run a time service (chrony, ntpd) on every node")
    return Finding("clocks", "ok", f"{len(titles)} nodes within {CLOCK + error:.1f} s")


def _shared(wanted: Wanted, titles: Sequence[str], ask: Ask) -> list[Finding]:
    """A file that is written here is looked for on every node."""
    findings = []
    for folder in wanted.shared:
        name = f".evr1-doctor-{uuid.uuid4().hex}"
        fault = put(folder, name)
        if fault:
            findings.append(Finding("shared", "fault", f"{folder}: can't be written: {fault}", "give another folder"))
            continue
        try:
            blind = [title for title, seen in zip(titles, ask(sees, folder, name), strict=True) if seen is not True]
        finally:
            remove(folder, name)
        if blind:
            text = f"{folder} is another folder on {', '.join(blind)}"
            findings.append(Finding("shared", "fault", text, "put it on a disk that all nodes mount at this path"))
        else:
            findings.append(Finding("shared", "ok", f"{folder} is the same on {len(titles)} nodes"))
    return findings

"""`evr1 doctor --ray-address` on two real nodes, of which one sees other disks than the machine that asks."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import Nodes

# A mount namespace of its own gives the second node empty folders in the place of those that the first one has.
APART = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.skipif(
    subprocess.run([*APART, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode != 0,
    reason="no mount namespaces here",
)
def test_a_node_without_the_files(tmp_path: Path) -> None:
    """The node that lacks data, media, model and the run's folder is named; the other one is fit, and the two are compared."""
    own, runs = tmp_path / "own", tmp_path / "runs"
    (own / "model").mkdir(parents=True)
    runs.mkdir()
    (own / "model" / "config.json").write_text("{}")
    (own / "clip.mp4").write_bytes(b"")
    row = {"problem": "<video>Which?", "answer": "A", "problem_type": "multiple choice", "data_type": "video", "videos": ["clip.mp4"]}
    (own / "train.jsonl").write_text(json.dumps({**row, "options": ["A. one", "B. two"]}) + "\n")
    config = tmp_path / "run.yaml"
    config.write_text(
        f"output: {runs}\nmodel: {{path: {own}/model}}\ndata: {{train: [{own}/train.jsonl]}}\nmedia: {{cache_dir: {tmp_path}/cache}}\n"
    )
    empty = " && ".join(f"mount -t tmpfs tmpfs {shlex.quote(str(folder))}" for folder in (own, runs))
    nodes = Nodes(tmp_path)
    try:
        nodes.start([*APART, "bash", "-c", f'{empty} && exec "$@"', "-"])
        nodes.wait_for_both()
        command = [sys.executable, "-m", "evr1_cli.main", "doctor", "--config", str(config), "--ray-address", nodes.address, "--json"]
        done = subprocess.run(command, env=nodes.joining, capture_output=True, text=True, timeout=240)
    finally:
        left = nodes.end()
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)["findings"]
    by_node: dict[str, dict[str, dict[str, str]]] = {}
    for one in found:
        by_node.setdefault(one["node"], {})[one["check"]] = one
    everywhere = by_node.pop("")
    assert len(by_node) == 2
    [lacking] = [node for node, checks in by_node.items() if checks["files"]["state"] == "fault"]
    for name in ("train.jsonl", "clip.mp4", "model/config.json"):
        assert f"{own}/{name}" in by_node[lacking]["files"]["text"]
    [fit] = [checks for node, checks in by_node.items() if node != lacking]
    assert fit.keys() == by_node[lacking].keys() and {"versions", "decoder", "all-reduce", "folders", "memory"} <= fit.keys()
    assert {name for name, one in fit.items() if one["state"] == "fault"} == set()
    assert everywhere["same nodes"]["state"] == "ok" and everywhere["clocks"]["state"] == "ok"
    assert everywhere["shared"]["state"] == "fault" and everywhere["shared"]["text"] == f"{runs} is another folder on {lacking}"
    assert not list(runs.iterdir()), "what was written to look is removed"
    assert not left

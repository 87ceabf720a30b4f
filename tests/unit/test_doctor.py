"""`evr1 doctor`: what it finds, names and exits with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from evr1_cli.main import main
from evr1_core.doctor import machine, nodes
from evr1_core.doctor.finding import Finding, Wanted
from evr1_core.doctor.nodes import differences


def doctor(*arguments: str) -> int:
    try:
        return main(["doctor", *arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check that starts processes, and away from a cluster."""
    monkeypatch.setattr(machine, "CHECKS", {name: check for name, check in machine.CHECKS.items() if name != "all-reduce"})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_this_machine(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("EVR1_CACHE_DIR", str(tmp_path))
    assert doctor("--json") == 0
    found = json.loads(capsys.readouterr().out)
    states = {one["check"]: one["state"] for one in found["findings"]}
    assert found["fit"] and set(states) == set(machine.CHECKS)
    assert states["decoder"] == "ok" and states["versions"] == "ok"
    versions = next(one for one in found["findings"] if one["check"] == "versions")
    assert {"python", "torch", "av"} <= versions["facts"].keys()


def test_missing_files_are_a_fault(
    quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVR1_CACHE_DIR", str(tmp_path))
    config = tmp_path / "run.yaml"
    config.write_text(f"output: {tmp_path}/runs\nmodel: {{path: {tmp_path}/model}}\ndata: {{train: [{tmp_path}/train.jsonl]}}\n")
    assert doctor("--config", str(config)) == 1
    shown = capsys.readouterr().out
    assert f"not on this node: {tmp_path}/train.jsonl, {tmp_path}/model/config.json" in shown and "-> put them" in shown
    assert "1 fault, " in shown


def test_a_check_that_raises_is_a_fault() -> None:
    def broken(wanted: Wanted) -> Finding:
        raise OSError("no such device")

    found = machine.run("broken", broken, Wanted())
    assert (found.check, found.state) == ("broken", "fault") and "OSError: no such device" in found.text


def test_variables_folders_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    assert "NCCL_P2P_DISABLE=1" in machine.environment(Wanted()).text
    found = machine.folders(Wanted(folders=(str(tmp_path / "not" / "there"),), min_free_gib=1e9))
    assert found.state == "fault" and "1e+09 are wanted" in found.text
    assert machine.folders(Wanted(folders=(str(tmp_path),))).state == "ok"


def test_nodes_that_differ_are_named() -> None:
    def node(name: str, **facts: Any) -> Finding:
        return Finding("versions", "ok", "", node=name, facts=facts)

    [found] = differences({"versions": [node("a", torch="2.13"), node("b", torch="2.12"), node("c", torch="2.13")]})
    assert found.state == "fault" and found.text == "torch: 2.12 on b; 2.13 on a, c"
    [same] = differences({"versions": [node("a", torch="2.13"), node("b", torch="2.13")]})
    assert same.state == "ok"


def test_a_cluster_with_a_silent_node_and_a_wrong_clock(quick: None, tmp_path: Path) -> None:
    """What comes from nodes is made up here: tests/integration/test_doctor_nodes.py asks real ones."""
    titles = ["a", "b", "c"]

    def ask(function: Any, *arguments: Any) -> list[Any]:
        answer = function(*arguments)
        late = answer - 9.0 if function is nodes.now else answer
        return [answer, late, RuntimeError("Traceback\n  somewhere\nModuleNotFoundError: No module named 'evr1_core'")]

    found = nodes.compare(Wanted(shared=(str(tmp_path / "runs"),)), titles, ask)
    [silent] = [one for one in found if one.node == "c"]
    assert (silent.check, silent.state) == ("node", "fault") and "No module named 'evr1_core'" in silent.text
    between = {one.check: one for one in found if not one.node}
    assert between["same nodes"].state == "ok"
    assert between["clocks"].state == "warning" and re.fullmatch(r"b -(8\.\d|9\.\d) s; c did not answer", between["clocks"].text)
    assert between["shared"].state == "fault" and between["shared"].text.endswith("runs is another folder on c")
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.timeout(150)
def test_processes_reduce() -> None:
    assert machine.reduce(Wanted()).state == "ok"

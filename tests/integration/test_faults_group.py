"""Two real processes: values come back, and each way to fail ends with the rank, what it was at, and no process left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from evr1_core.cluster.failure import WorkerFailure
from evr1_core.cluster.group import WorkerGroup
from evr1_core.cluster.start import stop_ray
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import Evr1Error, RequestError
from tests.support.processes import HEAD, alive, kill, named, processes_with, ray_head, wait_for_end

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TARGET = "tests.integration.faults:Worker"
BOUND = 60.0


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """One Ray of this machine for all tests of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
        stop_ray()


def open_group(logs: Path, deadline: float = 600.0, start: float = 300.0, target: str = TARGET, **arguments: Any) -> WorkerGroup:
    section = ClusterSection(workers=2, deadline=deadline, start_deadline=start)
    return WorkerGroup.open(target, arguments, size=2, device="cpu", section=section, logs=logs, name="policy")


def fail(group: WorkerGroup, how: str) -> WorkerFailure:
    """Call for a fault; it ends within the bound, and no process is left."""
    begun = time.monotonic()
    with pytest.raises(WorkerFailure) as caught:
        group.call("fault", how, phase="update")
    assert time.monotonic() - begun < BOUND
    assert not alive(group.pids())
    with pytest.raises(Evr1Error, match="closed"):
        group.begin("place")
    return caught.value


def test_values_places_and_traffic(tmp_path: Path) -> None:
    with closing(open_group(tmp_path / "logs", greeting="hi")) as group:
        places = group.call("place")
        assert [(place["rank"], place["size"], place["local_rank"]) for place in places] == [(0, 2, 0), (1, 2, 1)]
        assert all(place["folder"] == os.getcwd() and place["node"] == socket.gethostname() for place in places)
        assert not any(place["interrupts"] or place["group"] == os.getpgid(0) for place in places), "Ctrl-C is for the driver"
        assert len(set(group.pids())) == 2 and os.getpid() not in group.pids()

        assert group.call("add", 10, each=[(5,), (6,)]) == [("hi", 17), ("hi", 1018)]
        before = group.traffic()
        data = [bytes(100_000), bytes(300_000)]
        assert group.call("size_of", each=[(values,) for values in data]) == data
        counted = {name: count - before[name] for name, count in group.traffic().items()}
        assert 400_000 <= counted["sent"] < 401_000 and 400_000 <= counted["received"] < 401_000

        pending = group.begin("work", 1.0)
        with pytest.raises(Evr1Error, match="another call of this group is running"):
            group.call("place")
        assert pending.result() == [1.0, 1.0] == pending.result()
        with pytest.raises(Evr1Error, match="arguments for 1 ranks"):
            group.call("add", 1, each=[(1,)])
        pids = group.pids()
    assert not alive(pids)
    assert (tmp_path / "logs" / "policy-rank-1.log").exists()


def test_two_groups_work_at_the_same_time(tmp_path: Path) -> None:
    with closing(open_group(tmp_path, join=False)) as first, closing(open_group(tmp_path / "b", join=False)) as second:
        calls = [group.begin("size_of", b"x") for group in (first, second)]
        assert [call.result() for call in calls] == [[b"x", b"x"]] * 2


@pytest.mark.parametrize(
    ("how", "what", "trace"),
    [
        ("raise", "raised ValueError: loss is nan", "in _fail"),
        ("unpicklable", "raised Unpicklable: 3 and 4", "in _fail"),
        ("kill", "was killed by signal 9", ""),
        ("crash", "crashed: Fatal Python error: Segmentation fault", "in string_at"),
    ],
)
def test_failure_begins_with_rank_phase_samples_and_last_lines(tmp_path: Path, how: str, what: str, trace: str) -> None:
    failure = fail(open_group(tmp_path), how)
    first, *rest = str(failure).splitlines()
    assert first.startswith(f"policy rank 1 of 2 on node {socket.gethostname()} {what}")
    assert first.endswith(", in update (micro-batch 2 of 2), samples clip-2, clip-6")
    # What the other rank met is named as what came after.
    rest = [line for line in rest if not line.startswith("after that rank 0 ")]
    assert rest[0] == f"its last lines ({tmp_path / 'policy-rank-1.log'}):" and rest[1] == f"  | about to {how}"
    assert trace in "\n".join(rest[2:]) and "host.py" not in "\n".join(rest[2:4])
    if how == "kill":
        assert [other.consequence for other in failure.others] in ([], [True])


def test_request_errors_stay_request_errors(tmp_path: Path) -> None:
    group = open_group(tmp_path)
    with pytest.raises(RequestError, match=r"^train.lr=1e9 is too large$"):
        group.call("fault", "request")
    assert not alive(group.pids())


def test_result_that_is_no_value_is_an_error_of_its_rank(tmp_path: Path) -> None:
    text = str(fail(open_group(tmp_path), "result"))
    assert "rank 1 of 2" in text and "pickle" in text.splitlines()[0]


def test_hanging_rank_is_named_not_the_waiting_one(tmp_path: Path) -> None:
    group = open_group(tmp_path, deadline=5.0)
    assert group.call("work", 9.0) == [9.0, 9.0], "rank 0 waits for longer than the deadline, but rank 1 moves"
    failure = fail(group, "hang")
    first, waiting, last, line, *stack = str(failure).splitlines()
    assert first.startswith(f"policy rank 1 of 2 on node {socket.gethostname()} hung for ")
    assert first.endswith(", in update (micro-batch 2 of 2), samples clip-2, clip-6")
    assert waiting.startswith("rank 0 has been in update (micro-batch 2 of 2) for ") and "distributed_c10d.py" in waiting
    assert last.startswith("its last lines") and line == "  | about to hang"
    assert "time.sleep(600)" in "\n".join(stack)


@pytest.mark.parametrize(("how", "what"), [("stop", "is stopped by a signal (SIGSTOP)"), ("hold", "in _fail")])
def test_rank_that_gives_no_answer(tmp_path: Path, how: str, what: str) -> None:
    """A stopped process, and one whose Python is stuck in a C function: only the signal shows where."""
    failure = fail(open_group(tmp_path, deadline=5.0), how)
    first = str(failure).splitlines()[0]
    assert first.startswith(f"policy rank 1 of 2 on node {socket.gethostname()} gave no sign of life for ")
    assert first.endswith(", in update (micro-batch 2 of 2), samples clip-2, clip-6")
    assert what in str(failure)
    assert list(failure.fault.lines) == [f"about to {how}"]


def test_start_that_fails(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailure, match="rank 1 of 2 .* raised ValueError: no weights, in start") as caught:
        open_group(tmp_path, fail="raise")
    assert list(caught.value.fault.lines) == ["about to fail"]
    with pytest.raises(RequestError, match="^model.dtype=float8 is unknown$"):
        open_group(tmp_path, fail="request")
    with pytest.raises(WorkerFailure, match="raised ModuleNotFoundError: No module named 'tests.no_module'"):
        open_group(tmp_path, target="tests.no_module:Worker")
    with pytest.raises(WorkerFailure, match=r"rank 1 of 2 .* hung for .*, in start \(reading weights\)"):
        open_group(tmp_path, start=20.0, fail="sleep")


def test_wrong_requests(tmp_path: Path) -> None:
    section = ClusterSection(workers=64)
    with pytest.raises(RequestError, match="cluster.workers=64 needs 64 GPUs, Ray has "):
        WorkerGroup.open(TARGET, {}, size=64, device="cuda", section=section, logs=tmp_path, name="policy")


def start_driver(folder: Path, phase: str, *address: str, **environment: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """A program of its own that opens two workers; what it prints of them."""
    command = [sys.executable, "-m", "tests.integration.faults", str(folder), phase, *address]
    driver = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    assert driver.stdout is not None
    lines = []
    for line in driver.stdout:
        lines.append(line)
        if line.startswith("{"):
            return driver, json.loads(line)
    driver.wait(timeout=30)
    raise AssertionError(f"it ended before its workers were there:\n{''.join(lines)}")


def listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def children(pid: int) -> list[int]:
    """All processes below one."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *children(int(child))]
    return found


def test_interrupt_reaches_the_driver_alone_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    driver, found = start_driver(tmp_path, "update")
    family = children(driver.pid)
    try:
        port = found["places"][0]["port"]
        assert set(found["pids"]) <= set(family) and alive(found["pids"]) == found["pids"] and len(family) > 4
        time.sleep(3.0)  # until it waits for the call
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        assert driver.stdout is not None and "interrupted" in next(line for line in driver.stdout if line.startswith("{"))
        time.sleep(1.0)
        assert alive(found["pids"]) == found["pids"] and driver.poll() is None, "no worker ends, and the call goes on"
    finally:
        driver.kill()
        driver.wait(timeout=30)
    wait_for_end(found["pids"], 30.0)
    # Ray's own two agents try for a minute to tell the head of it, which is gone as well.
    wait_for_end(family, 120.0)
    assert not listening(port) and not listening(int(found["head"].rpartition(":")[2]))


@pytest.mark.extra
def test_lost_head_ends_the_driver_with_that_message(tmp_path: Path) -> None:
    """A cluster is joined, then the process that rules it is killed, as when the machine of the head goes down."""
    driver = None
    found: dict[str, Any] = {"pids": []}
    with ray_head() as (address, mark):
        try:
            driver, found = start_driver(tmp_path, "update", address, **HEAD)
            begun = time.monotonic()
            kill(named(processes_with(mark), "gcs_server"))
            assert driver.stdout is not None
            rest = driver.stdout.read()
            driver.wait(timeout=60)
            assert time.monotonic() - begun < BOUND
            last = json.loads(next(line for line in rest.splitlines() if line.startswith("{")))
            assert last["kind"] == "WorkerFailure", rest
            assert last["failure"].startswith(
                f"policy workers: the Ray head at {found['head']} is gone, and with it the cluster, in update"
            )
            assert driver.returncode == 0, rest
            wait_for_end(found["pids"])
        finally:
            kill([*found["pids"], *([driver.pid] if driver else [])])


@pytest.mark.extra
def test_two_nodes(tmp_path: Path) -> None:
    """Ranks of a node are neighbours, GPUs are counted, and a node that goes down is named."""
    command = [sys.executable, "-m", "tests.integration.group_nodes", str(tmp_path)]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "EVR1_TEST_NODES": str(tmp_path)}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    finally:
        kill(processes_with(f"EVR1_TEST_NODES={tmp_path}"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    nodes = [place["node"] for place in found["places"]]
    assert nodes == [found["own"]] * 2 + [nodes[3]] * 2 and nodes[3] != found["own"]
    assert [place["gpus"] for place in found["places"]] == [["0"], ["1"], ["0"], ["1"]] and found["local"] == [0, 1, 0, 1]
    assert found["with 5"].startswith("rollout.workers=5 needs 5 GPUs, Ray has 4")
    assert found["with 1"].startswith("rollout.workers=1 needs 1 GPUs, 0 of Ray's 4 are free")
    first, second, *_ = found["failure"].splitlines()
    assert first.startswith("policy rank ") and first.endswith(" is gone with its node, in update (waiting), samples clip-3")
    assert {first.split()[2], second.split()[3]} == {"2", "3"} and second.endswith(" is gone with its node")

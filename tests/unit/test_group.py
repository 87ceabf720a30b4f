"""Which rank is late, which fault is the cause, and what a dead process is said to have died of."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evr1_core.cluster.failure import BEGIN, Fault, WorkerFailure, choose_cause, end_processes, ended, process_start, remains, tail
from evr1_core.cluster.heartbeat import Sign, choose_late, in_collective, waiting_lines
from evr1_core.cluster.start import LONGEST_TEMP_DIR, answers, start_ray
from evr1_core.config.cluster import ClusterSection
from evr1_core.errors import RequestError


@pytest.mark.parametrize(
    ("signs", "late"),
    [
        ({0: Sign(5, 20, 1), 1: Sign(5, 5, 1)}, None),  # both moved within the deadline
        ({0: Sign(5, 40, 1, waits=True), 1: Sign(4, 40, 1)}, 1),  # behind, and not in a collective
        ({0: Sign(4, 40, 1, waits=True), 1: Sign(9, 40, 1)}, 1),  # has begun more pieces, but the other is in a collective
        ({0: Sign(5, 40, 1), 1: Sign(4, 40, 1)}, 1),  # behind
        ({0: Sign(5, 45, 1), 1: Sign(5, 40, 1)}, 0),  # equally far, quiet for longer
        ({0: Sign(5, 40, 1, waits=True), 1: Sign(4, 2, 1)}, None),  # the one that is waited for moves
        ({0: Sign(5, 61, 1, waits=True), 1: Sign(4, 2, 1)}, 1),  # it moves, but has been waited for too long
        ({0: Sign(1, 40, 1), 1: Sign(9, 40, 31)}, 1),  # gives no answer
        ({}, None),
    ],
)
def test_late_rank(signs: dict[int, Sign], late: int | None) -> None:
    assert choose_late(signs, deadline=30, silence=30) == late


def test_waiting_ranks_are_seen_by_their_stacks() -> None:
    waits = '  File "/a/train.py", line 3, in step\n    x()\n  File "/b/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
    works = '  File "/b/torch/distributed/fsdp/state.py", line 9, in hook\n  File "/a/train.py", line 3, in step\n'
    assert in_collective(waits) and not in_collective(works) and not in_collective("")
    state = {"phase": "update", "detail": "micro-batch 2 of 7", "seconds": 31.4, "stack": waits}
    lines = waiting_lines(1, {rank: state for rank in range(7)})
    assert lines[0] == "rank 0 has been in update (micro-batch 2 of 7) for 31 s, at all_reduce (distributed_c10d.py:9)"
    assert len(lines) == 5 and lines[-1] == "and 2 more ranks" and not any(line.startswith("rank 1 ") for line in lines)


def test_broken_connections_are_consequences() -> None:
    broken = Fault(0, "raised RuntimeError: Connection closed by peer", consequence=True, at=1.0)
    dead, later = Fault(3, "was killed by signal 9", at=2.0), Fault(2, "raised ValueError: x", at=3.0)
    assert choose_cause([broken, later, dead]) == (dead, [later, broken])
    assert choose_cause([broken]) == (broken, [])


def test_message_names_rank_place_samples_lines_and_trace_in_this_order() -> None:
    samples = [f"q{number}" for number in range(10)]
    cause = Fault(1, "raised ValueError: nan", "n1", "update", "micro-batch 2 of 7", samples, ["step 3"], "Traceback ...\n", "/l/1.log")
    failure = WorkerFailure("policy", 4, cause, [Fault(0, "raised RuntimeError: closed\nand more", "n0")], ["rank 2 waits"])
    assert str(failure).splitlines() == [
        "policy rank 1 of 4 on node n1 raised ValueError: nan, in update (micro-batch 2 of 7), "
        "samples q0, q1, q2, q3, q4, q5, q6, q7 and 2 more",
        "after that rank 0 on node n0 raised RuntimeError: closed",
        "rank 2 waits",
        "its last lines (/l/1.log):",
        "  | step 3",
        "Traceback ...",
    ]
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)
    many = WorkerFailure("policy", 64, cause, [Fault(rank, "raised X") for rank in range(2, 30)])
    assert str(many).count("after that rank") == 8 and "and 20 more ranks" in str(many)
    assert (
        str(WorkerFailure("rollout", 2, Fault(-1, "the Ray head is gone", phase="rollout")))
        == "rollout workers: the Ray head is gone, in rollout"
    )


def test_what_a_process_died_of(tmp_path: Path) -> None:
    log = tmp_path / "policy-rank-0.log"
    log.write_text(
        f"{BEGIN} before\nold line\n{BEGIN} now\nreading\nFatal Python error: Aborted\n\nThread 1:\n  a\n\nCurrent thread 2:\n  b\n\nend\n"
    )
    log.with_suffix(".state").write_text(json.dumps({"phase": "update", "samples": ["q1"]}).ljust(4096))
    place = {"log": str(log), "pid": 2**22 + 1, "started": "77", "oom_kills": 0}
    left = remains(place)
    assert left["alive"] is False and remains({**place, "pid": os.getpid(), "started": process_start(os.getpid())})["alive"] is True
    assert left["lines"] == ["reading"] and left["state"] == {"phase": "update", "samples": ["q1"]}
    assert left["crash"].splitlines() == ["Fatal Python error: Aborted", "Current thread 2:", "  b"]
    end_of_file = "The actor died. Worker unexpectedly exits with a connection error code 2. End of file. ... OOM killer ..."
    assert ended(end_of_file, {**left, "oom_kills": 0})["what"] == "crashed: Fatal Python error: Aborted"
    assert ended(end_of_file, {"oom_kills": 1})["what"].startswith("was killed by the kernel for lack of memory")
    assert ended(end_of_file, {})["what"].startswith("was killed by signal 9")
    assert "SIGTERM" in ended("exits by a signal. The process receives a SIGTERM.", {})["what"]
    assert ended("The actor is dead because its node has died.", {})["what"] == "is gone with its node"
    assert ended("Task was killed due to the node running low on memory.", {})["what"].startswith("was killed by Ray's memory monitor")
    assert ended("The actor is unavailable: Connection reset by peer", None)["what"] == "is gone with its node"
    assert ended("The actor is unavailable: Connection reset by peer", {})["what"].startswith("was killed by signal 9")
    assert ended("The actor is unavailable: Connection reset by peer", {"alive": True})["what"].startswith("lost its connection")
    unknown = ended("something new", {})
    assert (unknown["what"], unknown["traceback"]) == ("ended", "something new")


def test_tail_of_a_log_is_of_the_last_process(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert tail(log) == tail(None) == []
    log.write_text(f"{BEGIN} a\nold\n{BEGIN} b\n")
    assert tail(log) == []
    with log.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(100_000))
    assert tail(log, 2) == ["line 99998", "line 99999"] and len(tail(log)) == 20


@pytest.mark.timeout(60)
def test_processes_are_ended_with_their_children() -> None:
    """A process that ignores the polite signal, at the head of a group with a child; a stranger that got an old pid is left alone."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '300']); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    stranger = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = process_start(parent.pid)
        assert started.isdigit() and process_start(2**22 + 1) == ""
        assert end_processes([(parent.pid, started), (stranger.pid, "1")], seconds=0.5) == [parent.pid]
        assert parent.wait(timeout=10) == -signal.SIGKILL
        end = time.monotonic() + 10
        while Path(f"/proc/{child}").exists() and time.monotonic() < end:
            time.sleep(0.05)
        stat = Path(f"/proc/{child}/stat")
        assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
        assert stranger.poll() is None
    finally:
        for process in (parent, stranger):
            process.kill()
            process.wait(timeout=10)


def test_cluster_that_can_not_be_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    if ray.is_initialized():
        pytest.skip("Ray runs in this process already")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(RequestError, match=f"no Ray cluster answers at {address}"):
            start_ray(ClusterSection(address=address))
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RequestError, match=f"no Ray cluster answers at {address}"):
            start_ray(ClusterSection())
    with pytest.raises(RequestError, match="without a scheme"):
        start_ray(ClusterSection(address="ray://127.0.0.1:10001"))
    with pytest.raises(RequestError, match="expected HOST:PORT"):
        start_ray(ClusterSection(address="head"))
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(RequestError, match=f"at most {LONGEST_TEMP_DIR} characters"):
        start_ray(ClusterSection(temp_dir=Path("/tmp") / ("long" * 20)))
    assert not ray.is_initialized()


def test_address_answers() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert answers(f"127.0.0.1:{server.getsockname()[1]}", 2.0)

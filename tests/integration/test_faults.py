"""The fault matrix: each way to fail ends a run of two workers within a minute, with the right message and nothing left behind, and the
next start goes on from the last checkpoint bit for bit.

All faults hit one run, one after the other, each two steps after the start: so that the step before the fault shows whether the run went
on from the fault before as one that nothing happened to (`whole`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray")

from evr1_core.cluster.failure import WorkerFailure
from evr1_core.cluster.start import stop_ray
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.record.files import lock
from evr1_core.train import loop
from evr1_core.train.checkpoint import Checkpoints, read_checkpoint
from evr1_core.train.checkpoint_files import CheckpointError
from evr1_core.train.restart import newest_checkpoint
from tests.support.faults import Planned, struck, use_faulty_workers, vary_rewards
from tests.support.processes import HEAD, alive, kill, named, processes_with, ray_head, wait_for_end
from tests.support.questions import write_questions
from tests.support.runs import start, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
BOUND = 60.0
STEPS = 16
HOST = re.escape(socket.gethostname())


@pytest.fixture(scope="module")
def settings(tiny_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("faults")
    return [
        f"output={folder / 'runs'}",
        f"model.path={tiny_directory}",
        "model.dtype=float32",
        "model.device=cpu",
        f"data.train=[{write_questions(folder / 'questions')}]",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={folder / 'cache'}",
        "rollout.engine=hf",
        "rollout.n=4",
        "rollout.max_tokens=6",
        "algorithm.name=grpo",
        "train.batch_size=4",
        f"train.steps={STEPS}",
        "train.lr=1e-3",
        "train.schedule=constant",
        "train.save_every=1",
        "train.save=wait",
        "train.micro_batch_tokens=600",
        "cluster.backend=ray",
        "cluster.workers=2",
    ]


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """One Ray for all tests of this file, with workers that know how to fail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv("RAY_ADDRESS", raising=False)
        use_faulty_workers(patch.setattr)
        vary_rewards(patch.setattr)
        yield
        stop_ray()


@pytest.fixture(scope="module")
def whole(settings: list[str], environment: None) -> Path:
    """A run that nothing happens to, with all its checkpoints."""
    return train([*settings, "name=whole", f"train.keep={STEPS}"])


@pytest.fixture(scope="module")
def patient(settings: list[str], whole: Path) -> Path:
    """The run that all faults hit."""
    return whole.with_name("patient")


def check_checkpoint(whole: Path | None, run: Path, step: int | None = None) -> int:
    """The last checkpoint is whole, and bit for bit that of the run without faults: weights, optimizer, position in the data, random
    states, memory of the algorithm. Returns its step, 0 without one. `whole` None: the run is like no other."""
    latest = Checkpoints(run / "checkpoints").latest()
    found, _ = newest_checkpoint(run / "checkpoints")
    assert (latest.name if latest else "") == (f"step-{found:06d}" if found else ""), "the newest checkpoint is not whole"
    assert step is None or found == step
    if whole is not None and latest is not None:
        (mine, state), (theirs, expected) = (read_checkpoint(folder / "checkpoints" / latest.name) for folder in (run, whole))
        assert state == expected
        assert mine.keys() == theirs.keys()
        for kind, tensors in mine.items():
            assert tensors.keys() == theirs[kind].keys()
            assert all(torch.equal(tensors[name], theirs[kind][name]) for name in tensors), kind
    return found


def seconds(what: str, begun: float) -> None:
    print(f"{what}: {time.monotonic() - begun:.1f} s")


@dataclass
class Met:
    """How a run met a fault."""

    error: Evr1Error
    text: str
    lines: list[str]


def meet(patient: Path, whole: Path | None, settings: list[str], planned: Planned, *more: str) -> Met:
    """A run that goes on from the fault before, makes one step as if nothing had been, and meets this one."""
    before, _ = newest_checkpoint(patient / "checkpoints")
    planned.write(patient)
    pids: list[int] = []
    with pytest.raises(Evr1Error) as caught:
        run = start([*settings, f"name={patient.name}", *more])
        try:
            pids = [pid for group in run.engine.workers.groups for pid in group.pids()]  # pyright: ignore[reportAttributeAccessIssue]
            loop.fit(run)
        finally:
            run.close()
    at = struck(patient)
    assert at is not None, f"there was no fault: {caught.value}"
    assert time.time() - at < BOUND
    print(f"{planned.how} in {planned.where}: {time.time() - at:.1f} s")
    assert not alive(pids)
    os.close(lock(patient))
    check_checkpoint(whole, patient, before + (planned.where != "start"))
    text = str(caught.value)
    return Met(caught.value, text, text.splitlines())


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("raise", r"raised ValueError: the loss is nan"),
        ("memory", r"raised RuntimeError: .*can't allocate memory"),
        ("kill", r"was killed by signal 9"),
        ("hang", r"hung for \d+ s \(cluster.deadline=12\)"),
    ],
)
def test_fault_in_an_update(settings: list[str], whole: Path, patient: Path, how: str, what: str) -> None:
    met = meet(patient, whole, settings, Planned(how, "update"), *(["cluster.deadline=12"] if how == "hang" else []))
    assert isinstance(met.error, WorkerFailure)
    assert re.match(rf"policy rank 1 of 2 on node {HOST} {what}", met.lines[0]), met.text
    assert re.search(r"in update \(forward pass 1\), samples q\d+(, q\d+)*$", met.lines[0]), met.text
    rest = [line for line in met.lines[1:] if not line.startswith(("after that rank 0 ", "rank 0 has been in update "))]
    if how == "memory":
        assert re.match(r"To use less memory: cluster.prompts_gib \(now 8 for each worker\), ", rest.pop(0)), met.text
    assert rest[0] == f"its last lines ({patient / 'logs' / 'policy-rank-1.log'}):", met.text
    assert f"  | about to {how}" in rest
    if how in ("raise", "memory", "hang"):
        assert "in strike" in "\n".join(rest), "the traceback comes after the last lines"


@pytest.mark.extra
def test_kill_while_answers_are_drawn(settings: list[str], whole: Path, patient: Path) -> None:
    met = meet(patient, whole, settings, Planned("kill", "generate", rank=0))
    assert re.match(rf"policy rank 0 of 2 on node {HOST} was killed by signal 9", met.lines[0]), met.text
    assert re.search(r"in rollout \(4 answers to 2 prompts\), samples q\d+, q\d+$", met.lines[0]), met.text


@pytest.mark.parametrize("save", ["wait", "background"])
def test_disk_full_at_a_checkpoint(settings: list[str], whole: Path, patient: Path, save: str) -> None:
    met = meet(patient, whole, settings, Planned("full", "save"), f"train.save={save}")
    assert isinstance(met.error, CheckpointError)
    assert re.search(r"checkpoints/step-\d+ could not be written: rank 1: \[Errno 28\] No space left on device", met.text), met.text
    assert re.search(r"It needs .* [MG]B, .* GB are free: free some.*The last checkpoint is untouched", met.text), met.text
    assert not list((patient / "checkpoints").glob(".writing-*"))


@pytest.mark.parametrize("rows", ["error", pytest.param("exclude", marks=pytest.mark.extra)])
def test_node_without_the_media(settings: list[str], whole: Path, patient: Path, rows: str) -> None:
    met = meet(patient, whole, settings, Planned("missing", "build"), f"data.bad_rows={rows}")
    assert isinstance(met.error, RequestError)
    assert re.match(rf"rank 1 on node {HOST}: sample 'q\d+': missing_media: /\S+\.(mp4|png): ", met.text), met.text
    assert "on all machines of the run" in met.text and len(met.lines) == 1


def test_node_without_the_model(settings: list[str], whole: Path, patient: Path) -> None:
    met = meet(patient, whole, settings, Planned("model", "start", call=1))
    assert isinstance(met.error, RequestError)
    assert re.match(rf"rank 1 on node {HOST}: .*/models/of/another/machine", met.text), met.text
    assert "on all machines of the run" in met.text


class Program:
    """`evr1 train` in a process of its own, on the run `program`."""

    def __init__(self, settings: list[str], folder: Path, *more: str, pace: float, **environment: str) -> None:
        self.run, self.log = folder, folder.with_name("program.log")
        folder.mkdir(exist_ok=True)
        self.mark = f"EVR1_TEST_PROGRAM={folder}-{time.time()}"
        own = {"OMP_NUM_THREADS": "1", "EVR1_TEST_PACE": str(pace), self.mark.partition("=")[0]: self.mark.partition("=")[2]}
        command = [sys.executable, "-m", "tests.support.faults", "train", *settings, "name=program", f"train.keep={STEPS}", *more]
        with self.log.open("wb") as log:
            everything = {**os.environ, **own, **environment}
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=everything, start_new_session=True)

    def step(self) -> int:
        return newest_checkpoint(self.run / "checkpoints")[0]

    def wait_for(self, steps: int, seconds: float = 240.0) -> list[int]:
        """Until so many more steps are saved: the pids of the workers."""
        before, end = self.step(), time.monotonic() + seconds
        while self.step() < before + steps:
            assert self.process.poll() is None and time.monotonic() < end, self.log.read_text()
            time.sleep(0.1)
        logs = [(self.run / "logs" / f"policy-rank-{rank}.log").read_text() for rank in range(2)]
        found = [int(re.findall(r"^== worker started .* process (\d+) on ", text, re.MULTILINE)[-1]) for text in logs]
        assert alive(found) == found
        return found

    def end(self) -> tuple[int, str]:
        """Wait: exit code and what it printed."""
        return self.process.wait(240), self.log.read_text()

    def everything(self) -> list[int]:
        """The program, its Ray, its workers."""
        return processes_with(self.mark)


@contextmanager
def program(settings: list[str], folder: Path, *more: str, pace: float = 0.0, **environment: str) -> Iterator[Program]:
    started = Program(settings, folder, *more, pace=pace, **environment)
    try:
        yield started
    finally:
        kill([started.process.pid, *started.everything()])
        started.process.wait(30)


def test_sigterm_saves_and_kill_leaves_no_worker(settings: list[str], whole: Path) -> None:
    run = whole.with_name("program")
    with program(settings, run, pace=0.5) as started:
        workers = started.wait_for(1)
        family = started.everything()
        begun = time.monotonic()
        started.process.send_signal(signal.SIGTERM)
        code, text = started.end()
        seconds("SIGTERM", begun)
        assert code == 128 + signal.SIGTERM, text
        assert f"stopped by SIGTERM after step {started.step()}, which is saved" in text and "Traceback" not in text
        wait_for_end(workers, BOUND, begun)
        wait_for_end(family, 120.0, begun)
    check_checkpoint(whole, run)
    os.close(lock(run))

    with program(settings, run, pace=0.5) as started:  # the same command goes on
        workers = started.wait_for(2)
        begun = time.monotonic()
        started.process.kill()
        started.process.wait(30)
        wait_for_end(workers, BOUND, begun)
        seconds("kill -9 of the run", begun)
    check_checkpoint(whole, run)
    os.close(lock(run))


@pytest.mark.parametrize("how", [pytest.param("own", marks=pytest.mark.extra), "joined"])
def test_lost_head(settings: list[str], whole: Path, how: str) -> None:
    """The run's own Ray loses the process that rules it, and training could go on without; of a cluster the whole head goes down."""
    run = whole.with_name("program")
    with ExitStack() as stack:
        address, mark = stack.enter_context(ray_head()) if how == "joined" else ("", "")
        more = [f"cluster.address={address}"] if address else []
        started = stack.enter_context(program(settings, run, *more, pace=3.0, **(HEAD if more else {})))
        workers = started.wait_for(1)
        head = processes_with(mark) if more else started.everything()
        kill(named(head, *(("gcs_server", "raylet") if more else ("gcs_server",))))
        begun = time.monotonic()
        code, text = started.end()
        seconds(f"lost head ({how})", begun)
        assert code == 1 and time.monotonic() - begun < BOUND, text
        assert re.search(r"^evr1: policy workers: the Ray head at \S+ is gone, and with it the cluster, in \w+", text, re.MULTILINE), text
        wait_for_end(workers, BOUND, begun)
    assert 0 < check_checkpoint(whole, run) < STEPS
    os.close(lock(run))


@pytest.mark.extra
@pytest.mark.parametrize(("group", "where"), [("rollout", "receive"), ("policy", "send")])
def test_kill_while_weights_are_on_their_way(settings: list[str], whole: Path, group: str, where: str) -> None:
    """With engines of their own two groups fail: the one that was killed is named."""
    run = whole.with_name(f"killed-{group}")
    separate = ("cluster.workers=1", "rollout.placement=separate", "train.async_steps=1")
    met = meet(run, None, settings, Planned("kill", where, group=group, rank=0), *separate)
    assert re.match(rf"{group} rank 0 of 1 on node {HOST} was killed by signal 9", met.lines[0]), met.text
    assert re.search(r"in weights \((sending|receiving) version \d\)|in weights", met.lines[0]), met.text


def test_restart_goes_on_to_the_end(settings: list[str], whole: Path, patient: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one: it ends the run."""
    from evr1_cli import train as command
    from evr1_core.config.load import load

    Planned("kill", "update").write(patient)
    before, _ = newest_checkpoint(patient / "checkpoints")
    monkeypatch.setattr(sys, "argv", ["evr1"])
    command.train(load([], [*settings, f"name={patient.name}", "cluster.max_restarts=1"]))
    assert struck(patient)
    events = (patient / "events.log").read_text()
    assert f"restart 1 of 1, from the checkpoint of step {before + 1}, after: policy rank 1 of 2 on node" in events
    assert check_checkpoint(whole, patient) == STEPS
    steps = [json.loads(line)["step"] for line in (patient / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))

"""Requests to stop, and starting again: signals within one process, and failures of a made-up run."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evr1_core.cluster.failure import Fault, WorkerFailure
from evr1_core.errors import Evr1Error, RequestError, Stopped
from evr1_core.train.restart import newest_checkpoint, with_restarts
from evr1_core.train.stop import StopRequest


@pytest.fixture(autouse=True)
def handlers_come_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_the_first_signal_waits_and_the_second_does_not(capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with StopRequest().listen() as stop, pytest.raises(KeyboardInterrupt), stop.deferred(), stop.step():
        send(signal.SIGTERM)
        assert stop.requested and stop.signal == "SIGTERM"
        done.append("the step goes on")
        send(signal.SIGINT)
        done.append("never")
    assert done == ["the step goes on"] and stop.signal == "SIGTERM"
    assert "SIGTERM: the step under way is finished" in (text := capfd.readouterr().err) and "a second signal stops at once" in text


def test_outside_of_the_steps_a_signal_ends_at_once() -> None:
    with StopRequest().listen() as stop, pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    assert stop.signal == "SIGTERM"


def test_another_thread_has_no_signals() -> None:
    found = []

    def work() -> None:
        before = signal.getsignal(signal.SIGTERM)
        with StopRequest().listen() as stop, stop.deferred():
            found.append(signal.getsignal(signal.SIGTERM) == before and not stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


def test_the_error_says_how_to_go_on_and_has_the_code_of_the_signal() -> None:
    stop = StopRequest()
    stop.request("SIGTERM")
    stop.request("SIGINT")
    error = stop.stopped(12, Path("runs/a/checkpoints/step-000012"))
    assert error.exit_code == 143 and "stopped by SIGTERM after step 12" in str(error) and "the same command goes on" in str(error)
    assert "train.resume=auto" in str(stop.stopped(12, Path("x"), resume="never"))
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, Stopped) and (str(again), again.signal, again.exit_code) == (str(error), "SIGTERM", 143)


def failure(what: str = "was killed by signal 9") -> WorkerFailure:
    return WorkerFailure("policy", 2, Fault(1, what, phase="update"))


class Story:
    """Starts of a run: each saves so many steps, then raises or ends."""

    def __init__(self, *starts: tuple[int, Exception | None]) -> None:
        self.starts, self.saved, self.again, self.notes = list(starts), 0, [], []

    def start(self, again: bool) -> None:
        self.again.append(again)
        saves, error = self.starts.pop(0)
        self.saved += saves
        if error is not None:
            raise error

    def run(self, limit: int, stopping: Callable[[], bool] = lambda: False) -> None:
        with_restarts(self.start, limit, lambda: (self.saved, self.saved), self.notes.append, stopping)


def test_a_run_goes_on_after_its_workers_failed() -> None:
    story = Story((0, failure()), (3, failure()), (2, None))
    story.run(limit=2)
    assert story.again == [False, False, True]
    assert story.notes[0].startswith("restart 1 of 2, from the beginning, as there is no checkpoint yet, after: policy rank 1 of 2")
    assert story.notes[1].startswith("restart 2 of 2, from the checkpoint of step 3, after: policy rank 1 of 2 was killed by signal 9")


def test_a_cluster_of_its_own_that_failed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    monkeypatch.setattr("evr1_core.train.restart.stop_ray", lambda: stopped.append(True))
    Story((1, failure()), (1, None)).run(limit=1)
    assert not stopped
    Story((1, WorkerFailure("policy", 2, Fault(-1, "Ray's head is gone"))), (1, None)).run(limit=1)
    assert stopped == [True]


def test_the_limit_holds() -> None:
    story = Story((1, failure()), (1, failure()), (1, None))
    with pytest.raises(WorkerFailure):
        story.run(limit=1)
    assert len(story.starts) == 1 and "cluster.max_restarts=1" in story.notes[-1]
    silent = Story((1, failure()))
    with pytest.raises(WorkerFailure):
        silent.run(limit=0)
    assert not silent.notes


def test_restarts_without_progress_are_given_up() -> None:
    story = Story((5, failure()), (0, failure()), (0, failure()), (1, None))
    with pytest.raises(WorkerFailure):
        story.run(limit=100)
    assert len(story.starts) == 1 and "2 restarts in a row have failed before a new checkpoint" in story.notes[-1]
    progress = Story((5, failure()), (0, failure()), (1, failure()), (0, failure()), (1, None))
    progress.run(limit=100)
    assert not progress.starts


@pytest.mark.parametrize("error", [RequestError("wrong"), Evr1Error("no signal"), KeyboardInterrupt(), failure("raised NonFinite: loss")])
def test_what_would_come_again_is_not_tried_again(error: Exception) -> None:
    story = Story((1, error), (1, None))
    with pytest.raises(type(error)):
        story.run(limit=5)
    assert len(story.starts) == 1


def test_a_run_that_was_asked_to_stop_is_not_started_again() -> None:
    story = Story((1, failure()), (1, None))
    with pytest.raises(WorkerFailure):
        story.run(limit=5, stopping=lambda: True)
    assert story.notes == ["not started again: it was asked to stop"]


def test_the_newest_checkpoint_is_a_complete_one(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "checkpoints") == (0, 0)
    for name in ("step-000002", "step-000010", ".writing-step-000020", "step-000030.left-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text("{}")
    (tmp_path / "step-000040").mkdir()
    step, written = newest_checkpoint(tmp_path)
    assert step == 10 and written == (tmp_path / "step-000010" / "manifest.json").stat().st_mtime_ns

"""What a run leaves: one line per step whatever happens, and nothing lost in silence."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console as RichConsole

from evr1_core.config.models import DataSection, RecordSection, RunConfig
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.record import console as console_module
from evr1_core.record.console import Console
from evr1_core.record.files import JsonLines, cut_from, rows, write_atomic
from evr1_core.record.record import Record
from evr1_core.types import Clip, Completion, Exclusion, Group, Prompt, Rollout, Sample, Score

TWO = (Score(accuracy=1.0, value=1.0, format=1.0), Score(accuracy=0.0, value=0.1))


def group(name: str = "s1", scores: tuple[Score, ...] = TWO) -> Group:
    clip = Clip(np.zeros((4, 3, 32, 64), np.uint8), (0.0, 0.5, 1.0, 1.5), (0, 15, 30, 45), 30.0, 60, 2.0, 0, "d-1", "content", "key")
    prompt = Prompt(Sample(name, "What?", "A", "choice"), (), "text", (1, 2, 3), (clip,))
    answers = [Completion((4, 5), (-0.1, -0.2), f"answer {i} \ud800", "stop" if i == 0 else "length", 3) for i in range(len(scores))]
    return Group(prompt, tuple(Rollout(answer, score) for answer, score in zip(answers, scores, strict=True)))


def open_record(directory: Path) -> tuple[Record, io.StringIO]:
    out = io.StringIO()
    return Record(directory, console=Console("run", 3, RichConsole(file=out, width=200))), out


def read(path: Path) -> list[dict[str, Any]]:
    return list(rows(path))


class Sink:
    """A tracker that remembers, and fails when it is told to."""

    def __init__(self, fail: bool = False) -> None:
        self.fail, self.calls = fail, []

    def _call(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fail:
            raise ConnectionError("no route")

    def start(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        self._call("start")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("log", step, dict(metrics))

    def finish(self) -> None:
        self._call("finish")


def test_a_step(tmp_path: Path) -> None:
    record, out = open_record(tmp_path)
    kept, dropped = group(), group("s2")
    with record.step(1) as step:
        for _ in range(2):
            with step.time("rollout"):
                time.sleep(0.01)
        step.exclude([Exclusion("s9", "too_long", "30 tokens\nlimit 20"), Exclusion("s8", "too_long")])
        step.collected([dropped, kept], kept=1, tries=2)
        step.rollouts([kept], advantages=[0.5, -0.5])
        step.log({"policy/loss": np.float32(0.5), "policy/grad_norm": math.inf})
    record.close()
    [line] = read(tmp_path / "metrics.jsonl")
    assert line["step"] == 1 and line["policy/loss"] == 0.5 and line["policy/grad_norm"] is None
    assert line["reward/accuracy"] == line["accuracy/choice"] == 0.5 and line["reward/value"] == 0.55
    assert line["reward/format"] == 1.0 and line["score/scored"] == 1.0 and line["rollout/truncated"] == 0.5
    assert (line["selection/kept"], line["selection/dropped"], line["selection/tries"]) == (1, 1, 2)
    assert line["excluded/too_long"] == 2 and line["memory/host"] > 0 and line["time/step"] >= line["time/rollout"] >= 0.02
    answers = read(tmp_path / "rollouts.jsonl")
    assert [(row["sample"], row["answer"], row["kept"], row["advantage"], row["group"]) for row in answers] == [
        ("s1", 0, True, 0.5, 0),
        ("s1", 1, True, -0.5, 0),
        ("s2", 0, False, None, 1),
        ("s2", 1, False, None, 1),
    ]
    assert answers[0]["text"] == "answer 0 \ud800" and answers[0]["weight_version"] == 3 and answers[0]["score"]["value"] == 1.0
    assert answers[0]["media"][0]["key"] == "key" and answers[0]["media"][0]["fps"] == 2.0
    events = (tmp_path / "events.log").read_text().splitlines()
    assert "excluded step 1: s9: too_long: 30 tokens\\nlimit 20" in events[0] and "policy/grad_norm" in events[2]
    assert "step 1/3  reward 0.55  accuracy 0.5" in out.getvalue()


def test_scores_without_a_number_are_warned_about(tmp_path: Path) -> None:
    record, out = open_record(tmp_path)
    with record.step(1) as step:
        step.collected([group(scores=(Score(accuracy=None, status="failed", reason="timeout"), Score(accuracy=1.0)))], kept=1)
    record.close()
    [line] = read(tmp_path / "metrics.jsonl")
    assert line["score/failed"] == 0.5 and line["reward/accuracy"] == 1.0
    assert "1 of 2 answers could not be scored, the first: failed: timeout" in out.getvalue()


def test_one_sided_answers_are_warned_about(tmp_path: Path) -> None:
    record, out = open_record(tmp_path)
    same = (Score(accuracy=1.0, answer="B", source="whole"),) * 16
    unread = (Score(accuracy=0.0, status="unparsed", reason="no_label"), *[Score(accuracy=0.0, status="unparsed", reason="ambiguous")] * 15)
    with record.step(1) as step:
        step.collected([group(scores=same), group("s2", scores=same)], kept=2)
    with record.step(2) as step:
        step.collected([group(scores=same[:4]), group("s2", scores=unread)], kept=2)
    with record.step(3) as step:
        step.collected([group(scores=same), group("s2", scores=(Score(accuracy=0.0, answer="A"),) * 4)], kept=2)
    with record.step(4) as step:
        step.collected([group(scores=same[:4])], kept=1)  # too few to say anything
    record.close()
    warnings = [line for line in out.getvalue().splitlines() if line.startswith("warning")]
    assert warnings == [
        "warning: 32 of 32 answers are the same: 'B'",
        "warning: 16 of 20 answers can't be read, 15 of them: ambiguous",
    ]
    _, line, *_ = read(tmp_path / "metrics.jsonl")
    assert line["score/unparsed"] == line["unparsed/choice"] == 0.8 and line["score/unparsed/ambiguous"] == 0.75
    assert line["score/whole"] == 0.2 and line["failed/choice"] == 0


def test_a_step_that_fails_leaves_its_answers_and_its_reason(tmp_path: Path) -> None:
    record, _ = open_record(tmp_path)
    with pytest.raises(ZeroDivisionError), record.step(4) as step:
        step.rollouts([group()])
        with step.time("update"):
            _ = 1 / 0
    record.close()
    assert not (tmp_path / "metrics.jsonl").exists()
    assert len(read(tmp_path / "rollouts.jsonl")) == 2
    assert "error step 4: stopped in update: ZeroDivisionError" in (tmp_path / "events.log").read_text()


def test_resume_cuts_later_steps_and_keeps_them_aside(tmp_path: Path) -> None:
    for _ in range(2):
        record, _ = open_record(tmp_path)
        assert record.resume(2 if (tmp_path / "metrics.jsonl").exists() else 0) in (0, 2)
        done = len(read(tmp_path / "metrics.jsonl")) if (tmp_path / "metrics.jsonl").exists() else 0
        for number in range(done + 1, 4):
            with record.step(number) as step:
                step.rollouts([group(f"s{number}")])
            record.validation(number, {"validate/accuracy": 0.5})
        record.close()
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert [row["step"] for row in read(tmp_path / "rollouts.jsonl")] == [1, 1, 2, 2, 3, 3]
    assert [row["step"] for row in read(tmp_path / "validation.jsonl")] == [1, 2, 3]
    assert [row["step"] for row in read(tmp_path / "metrics.cut-1.jsonl")] == [3]
    assert "moved to metrics.cut-1.jsonl" in (tmp_path / "events.log").read_text()


def test_starting_anew_cuts_everything(tmp_path: Path) -> None:
    record, _ = open_record(tmp_path)
    record.validation(0, {"validate/accuracy": 0.1})
    assert record.resume(0) == 0
    record.validation(0, {"validate/accuracy": 0.1})
    record.close()
    assert len(read(tmp_path / "validation.jsonl")) == 1


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3', b'{"step": 3}'])
def test_a_torn_line_never_runs_into_the_next(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}\n' + torn)
    assert [row["step"] for row in rows(path)] == [1, 2]
    lines = JsonLines(path)
    lines.append({"step": 3})
    lines.close()
    assert [row["step"] for row in rows(path)] == [1, 2, 3]


def test_a_damaged_line_in_the_middle_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(Evr1Error, match=r"a\.jsonl:2"):
        list(rows(path))
    side = cut_from(path, lambda row: False)
    assert side is not None and side.read_bytes() == b'nonsense\n{"step": 2}\n' and [row["step"] for row in rows(path)] == [1]


def test_a_failing_tracker_is_named_once_and_counted(tmp_path: Path) -> None:
    record, out = open_record(tmp_path)
    good, bad = Sink(), Sink(fail=True)
    record.trackers.add("bad", bad)
    record.trackers.add("good", good)
    record.trackers.start(tmp_path, {})
    for number in (1, 2):
        with record.step(number) as step:
            step.log({"policy/loss": 1.0, "policy/kl": math.nan})
    record.close()
    assert out.getvalue().count("tracker 'bad' failed: ConnectionError: no route") == 1
    assert [line["tracker/failures"] for line in read(tmp_path / "metrics.jsonl")] == [2, 3]
    assert [call[0] for call in good.calls] == ["start", "log", "log", "finish"]
    assert good.calls[1][2]["policy/loss"] == 1.0 and "policy/kl" not in good.calls[1][2]


def test_trackers_that_have_a_state_find_it_again(tmp_path: Path) -> None:
    class Service(Sink):
        identity: Any = "run-7"

        def state_dict(self) -> dict[str, Any]:
            return {"identity": self.identity}

        def load_state_dict(self, state: Mapping[str, Any]) -> None:
            self.identity = state["identity"]

    record, out = open_record(tmp_path)
    named: dict[str, Any] = {"plain": Sink(), "service": Service(), "odd": Service()}
    named["odd"].identity = object()
    for name, tracker in named.items():
        record.trackers.add(name, tracker)
    state = record.trackers.state_dict()
    assert state == {"service": {"identity": "run-7"}}
    assert out.getvalue().count("tracker 'odd' failed: TypeError") == 1, "it stops no run"
    named["service"].identity = "another"
    record.trackers.load_state_dict({**state, "plain": {}, "gone": {}})
    assert named["service"].identity == "run-7"
    record.close()


def test_open_writes_the_manifest_and_keeps_the_one_before(tmp_path: Path) -> None:
    data = tmp_path / "train.jsonl"
    data.write_text("{}\n")
    template = "evr1_templates:prompts/math.j2"
    config = RunConfig(name="r", output=tmp_path / "runs", data=DataSection(train=(data, tmp_path / "gone.jsonl"), template=template))
    for _ in range(2):
        record = Record.open(config, {"seed": "default"}, command=["evr1", "train"])
        record.resume(0)
        record.close()
    content = json.loads((config.directory / "manifest.json").read_text())
    assert content["config"]["train"]["lr"] == 1e-6 and content["origins"] == {"seed": "default"} and content["seeds"] == {"run": 1}
    assert content["files"][str(data)]["sha256"].startswith("ca3d163bab055381")
    assert content["files"][str(tmp_path / "gone.jsonl")] == {"missing": True}
    assert set(content["prompt_sources"][template]) == {"math.j2", "multiple-choice.j2", "base.j2"}
    assert content["packages"]["pluggy"] and content["hardware"]["cores"] >= 1 and content["command"] == ["evr1", "train"]
    assert any(row["kind"] == "algorithm" for row in content["plugins"])
    assert (config.directory / "manifest.before-1.json").is_file()


def test_an_unknown_tracker_is_a_wrong_request_and_frees_the_directory(tmp_path: Path) -> None:
    config = RunConfig(output=tmp_path, record=RecordSection(trackers=("nosuchtracker",)))
    with pytest.raises(RequestError, match="nosuchtracker"):
        Record.open(config, {})
    Record.open(RunConfig(output=tmp_path), {}).close()


def test_a_folder_that_can_not_be_written_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="no run can be written there .*give another folder as `output`"):
        Record(tmp_path / "file" / "run")


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; from evr1_core.record.record import Record; "
        "record = Record(pathlib.Path(sys.argv[1])); print('in', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "in\n"
        with pytest.raises(RequestError, match=f"in use by process {other.pid}"):
            Record(tmp_path)
    finally:
        other.kill()
        other.communicate()
    Record(tmp_path).close()


def test_a_long_phase_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "HEARTBEAT", 0.02)
    out = io.StringIO()
    with Console("run", 3, RichConsole(file=out, width=200)).phase(2, "rollout"):
        time.sleep(0.1)
    assert "step 2: rollout, 0 s so far" in out.getvalue()


def test_on_a_terminal_there_is_a_bar() -> None:
    out = io.StringIO()
    console = Console("run", 3, RichConsole(file=out, width=120, force_terminal=True, highlight=False))
    with console.phase(1, "rollout"):
        time.sleep(0.15)
    console.done(1, {"reward/value": 0.25}, 1.0)
    console.close()
    assert "rollout" in out.getvalue() and "reward 0.25" in out.getvalue()


def test_a_full_disk_is_named_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device: .*summary.json"):
        write_atomic(tmp_path / "summary.json", "{}")
    assert not list(tmp_path.iterdir())

"""`evr1 rescore` and `evr1 judge`: new scores for stored answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from evr1_core.config.rewards import JudgeSection, RewardSection
from evr1_core.evaluate.rescore import judge, rescore
from evr1_core.evaluate.stored import open_run
from evr1_core.evaluate.suite import Wanted, failed_row, row, write_tables
from evr1_core.record.files import rows
from evr1_core.scoring.judge import Judge, Reply, unavailable
from evr1_core.scoring.pool import ScoringPool
from evr1_core.scoring.score import SCORER_VERSION
from evr1_core.types import Sample, Score
from tests.support.stored_runs import evr1, question, write_run

STALE = Score(accuracy=0.0, status="unparsed", reason="no_answer")
WAITS = Score(accuracy=None, status="failed", reason="judge_unavailable")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in rows(folder / "results.jsonl")}


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def stale_run(folder: Path) -> Path:
    """Ten right answers, of which an older scorer read only eight; one question was excluded."""
    samples = [question(i) for i in range(11)]
    return write_run(folder, samples, {f"q{i}": "The answer is A." for i in range(10)}, scores={"q2": STALE, "q5": STALE})


def test_new_scores_from_stored_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stale_run(tmp_path / "run")
    before = (run / "results.jsonl").read_bytes()
    assert not evr1(["rescore", str(run), "--dry-run"]) and (run / "results.jsonl").read_bytes() == before
    assert "2 of 11 answers changed" in capsys.readouterr().out
    assert not evr1(["rescore", str(run), "--json"])
    [found] = json.loads(capsys.readouterr().out)
    assert found["changed"] == 2 and found["moves"] == {"unparsed -> scored 1": 2} and [row["id"] for row in found["rows"]] == ["q2", "q5"]
    assert (run / "results.before-1.jsonl").read_bytes() == before and (run / "summary.before-1.json").exists()
    now = read(run)
    assert now["q2"]["status"] == "scored" and now["q2"]["answer"] == "A" and now["q2"]["text"] == "The answer is A."
    assert now["q10"]["status"] == "excluded" and len({row["settings"] for row in now.values()}) == 1
    settings = json.loads((run / "settings.json").read_text())
    assert settings["scorer"] == SCORER_VERSION and settings["questions"] == {"data": ["made-up.jsonl"]}
    assert summary(run)["counts"] == {"scored": 10, "unparsed": 0, "failed": 0, "invalid_gold": 0, "excluded": 1}
    assert summary(run)["name"] == "model-a" and summary(run)["settings"] == now["q0"]["settings"]
    assert not evr1(["rescore", str(run)]) and "0 of 11 answers changed" in capsys.readouterr().out


def test_the_tables_of_a_suite_follow(tmp_path: Path) -> None:
    run = stale_run(tmp_path / "suite" / "made-up")
    lost = failed_row(Wanted("other"), "missing")
    write_tables(tmp_path / "suite", [row("made-up", None, summary(run)), lost], {"model": "m"}, {"made-up": summary(run)})
    assert evr1(["rescore", str(run)]) == 0
    suite = json.loads((tmp_path / "suite" / "suite.json").read_text())
    assert suite["rows"][0]["unparsed"] == 0 and suite["rows"][0]["scored"] == 10 and suite["rows"][1] == lost
    assert suite["summaries"]["made-up"] == summary(run) and "not evaluated: missing" in (tmp_path / "suite" / "suite.md").read_text()


def test_other_rewards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stale_run(tmp_path / "run")
    assert not evr1(["rescore", str(run), "rewards.require_tag=true"])
    assert "8  scored 1 -> unparsed" in capsys.readouterr().out
    assert json.loads((run / "settings.json").read_text())["rewards"]["require_tag"] is True
    assert evr1(["rescore", str(run), "evaluate.n=2"]) == 2 and "only keys of rewards" in capsys.readouterr().err


def test_the_benchmark_reads_anew(tmp_path: Path) -> None:
    """Official values are written anew, and a reading that breaks is told."""

    class Own:
        def official(self, sample: Sample, text: str) -> Any:
            from evr1_core.evaluate.benchmark import Official

            if sample.id == "q1":
                raise IndexError("a bug")
            return Official("A", 1.0)

    run = open_run(stale_run(tmp_path / "run"))
    section = RewardSection()
    with ScoringPool(section, workers=1) as pool:
        found = rescore(run, pool, section, Own())
    assert found["official_changed"] == 9 and "broke on 1 answers; first: q1: IndexError: a bug" in found["notes"][-1]
    assert summary(run.directory)["official"]["official accuracy"]["n"] == 9


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = stale_run(tmp_path / "run")
    code = "import sys; from pathlib import Path; from evr1_core.record.files import lock; lock(Path(sys.argv[1])); print(); input()"
    with subprocess.Popen([sys.executable, "-c", code, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline()
        assert evr1(["rescore", str(run)]) == 2 and "is in use" in capsys.readouterr().err
        other.communicate(b"\n")
    assert evr1(["rescore", str(tmp_path)]) == 0


class Grader:
    """Gives full marks; from the answer `fails` on it is not to be reached."""

    identity: Mapping[str, Any] = {"model": "grader"}

    def __init__(self, fails: int | None = None) -> None:
        self.asked, self.fails = 0, fails

    async def reply(self, prompt: str) -> Reply:
        await asyncio.sleep(0)
        self.asked += 1
        if self.fails is not None and self.asked > self.fails:
            raise unavailable("no route")
        return Reply("Judgement: 1\nScore: 5", 1)

    async def close(self) -> None: ...


def open_questions(folder: Path) -> Path:
    samples = [question(i) for i in range(4)]
    samples += [question(i, problem_type="open-ended", options=None, answer="a red car", scoring={"metric": "judge"}) for i in range(4, 10)]
    texts = {sample.id: "A" if i < 4 else f"It is red car number {i}." for i, sample in enumerate(samples)}
    return write_run(folder, samples, texts, scores={f"q{i}": WAITS for i in range(4, 10)})


def judged(folder: Path, grader: Grader, tmp_path: Path) -> dict[str, Any]:
    section = RewardSection(judge=JudgeSection(model="grader", url="http://localhost/v1", concurrency=1, cache_dir=tmp_path / "replies"))
    assert section.judge is not None
    with ScoringPool(section, workers=1, judge=Judge(grader, section.judge)) as pool:
        return judge(open_run(folder), pool, section, None)


def test_the_second_stage_asks_only_about_what_waits_and_goes_on(tmp_path: Path) -> None:
    run = open_questions(tmp_path / "run")
    untouched = {name: read(run)[name]["score"] for name in ("q0", "q1", "q2", "q3")}
    first = judged(run, Grader(fails=2), tmp_path)
    assert first["wanted"] == 6 and first["judged"] == 2 and first["failed"] == {"judge_unavailable: no route": 4}
    assert first["after"] is None, "four of ten have no number"
    second_grader = Grader()
    second = judged(run, second_grader, tmp_path)
    assert (second["wanted"], second["judged"], second_grader.asked) == (4, 4, 4)
    now = read(run)
    assert all(now[f"q{i}"]["status"] == "scored" and now[f"q{i}"]["judge"] == "grader" for i in range(4, 10))
    assert {name: now[name]["score"] for name in untouched} == untouched and not (run / "judged.jsonl").exists()
    assert summary(run)["headline"]["n"] == 10 and second["after"]["value"] == summary(run)["headline"]["value"]
    assert json.loads((run / "settings.json").read_text())["rewards"]["judge"]["model"] == "grader"
    third = judged(run, Grader(), tmp_path)
    assert third["wanted"] == 0


def test_stopped_in_between_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evr1_core.evaluate import rescore as module

    run = open_questions(tmp_path / "run")
    monkeypatch.setattr(module, "JUDGED_CHUNK", 2)
    real = ScoringPool.score
    calls = []

    def dies(self: ScoringPool, items: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, items)

    monkeypatch.setattr(ScoringPool, "score", dies)
    with pytest.raises(KeyboardInterrupt):
        judged(run, Grader(), tmp_path)
    assert len(list(rows(run / "judged.jsonl"))) == 4
    monkeypatch.setattr(ScoringPool, "score", real)
    grader = Grader()
    assert judged(run, grader, tmp_path)["judged"] == 6 and grader.asked == 2


def test_rescoring_keeps_verdicts(tmp_path: Path) -> None:
    run = open_questions(tmp_path / "run")
    judged(run, Grader(), tmp_path)
    assert not evr1(["rescore", str(run)])
    now = read(run)
    assert now["q5"]["status"] == "scored" and now["q5"]["judge"] == "grader" and summary(run)["counts"]["failed"] == 0


def test_a_judge_must_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = open_questions(tmp_path / "run")
    assert evr1(["judge", str(run)]) == 2 and "give --judge-model" in capsys.readouterr().err
    assert (
        evr1(["judge", str(run), "--judge-url", "http://localhost:1/v1"]) == 2
        and "--judge-url needs --judge-model" in capsys.readouterr().err
    )
    out = ["rewards.judge.tries=1", "rewards.judge.cache=false", "--judge-model", "m", "--judge-url", "http://127.0.0.1:9/v1"]
    assert evr1(["judge", str(run), *out]) == 1
    assert "6 answers have no verdict" in capsys.readouterr().err and len(read(run)) == 10

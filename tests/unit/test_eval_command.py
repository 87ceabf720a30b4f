"""`evr1 eval` over several benchmarks: one engine, one table, what fails keeps nothing else from its number."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evr1_cli.suite import Request, wording
from evr1_core.errors import RequestError
from evr1_core.evaluate.suite import Wanted, budget_flags, comma_separated, failed_row, interval, markdown, read_names, root_of, row, shown
from evr1_core.plugins import catalogue
from evr1_core.record.files import rows
from evr1_core.rollout import async_engine
from evr1_core.specs import BudgetSpec
from evr1_core.types import Completion, Prompt, Sampling
from tests.support.miniatures import CLIPS, stvg, video_mme
from tests.support.stored_runs import evr1


class Letters:
    """Answers every prompt with one text; counts."""

    width = 4

    def __init__(self, text: str = "A") -> None:
        self.text, self.asked, self.opened = text, 0, 0

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        self.asked += 1
        return [Completion((7,), (), self.text, "stop") for _ in range(sampling.n)]

    def close(self) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Letters:
    made = Letters()

    def open_it(*_: Any, **__: Any) -> Letters:
        made.opened += 1
        return made

    monkeypatch.setattr(async_engine, "open_async_engine", open_it)
    return made


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("releases")
    for name, module in (("video-mme", video_mme), ("stvg", stvg)):
        (root / name).mkdir()
        module.make(root / name)
    return root


@pytest.fixture
def common(tiny_directory: Path, releases: Path, tmp_path: Path) -> list[str]:
    media = [f"media.cache_dir={tmp_path / 'cache'}", "media.evaluate.video.max_frames=4", "media.evaluate.video.max_pixels=4096"]
    model = ["model.device=cpu", "rollout.engine=hf", "data.max_prompt_tokens=6000"]
    return ["eval", *media, *model, "--model", str(tiny_directory), "--root", str(releases), "--output", str(tmp_path / "out")]


@pytest.mark.slow
def test_a_suite_with_a_missing_release(common: list[str], engine: Letters, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    names = ["--benchmark", "video-mme,video-mme:subtitles,vsi-bench,stvg"]
    assert evr1([*common, *names]) == 1
    shown = capsys.readouterr()
    assert "vsi-bench: no such folder" in shown.err and "evr1 benchmarks show vsi-bench" in shown.err
    assert engine.opened == 1 and engine.asked == 9 + 9 + 2
    assert "video-mme:subtitles" in shown.out and "official accuracy: 33.3" in shown.out
    assert (out / "video-mme-subtitles" / "results.jsonl").exists()
    suite = json.loads((out / "suite.json").read_text())
    assert [line["benchmark"] for line in suite["rows"]] == ["video-mme", "video-mme", "vsi-bench", "stvg"]
    first, lost = suite["rows"][0], suite["rows"][2]
    assert first["value"] == pytest.approx(1 / 3) and first["counted"] == 9 and first["official value"] == pytest.approx(1 / 3)
    assert lost["value"] is None and lost["remarks"].startswith("not evaluated: ")
    assert len(list(csv.DictReader(io.StringIO((out / "suite.csv").read_text())))) == 4
    assert "| video-mme:subtitles | accuracy | 33.3 [" in (out / "suite.md").read_text()
    settings = json.loads((out / "video-mme" / "settings.json").read_text())
    asked = {"benchmark": "video-mme", "variant": "no-subtitles", "prompt": "official", "thinking": False}
    assert settings["questions"].items() > asked.items() and settings["questions"].keys() - asked.keys() == {"content", "wordings"}

    assert evr1([*common, "--benchmark", "video-mme,stvg", "--json"]) == 0
    assert engine.opened == 1 and engine.asked == 20, "everything was answered: no engine is opened"
    assert [line["counted"] for line in json.loads(capsys.readouterr().out)][0] == 9


@pytest.mark.slow
def test_another_wording_is_another_run(common: list[str], engine: Letters, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = [*common, "--benchmark", "video-mme", "--limit", "2"]
    assert evr1(alone) == 0
    assert (tmp_path / "out" / "results.jsonl").exists() and (tmp_path / "out" / "suite.md").exists()
    official = next(rows(tmp_path / "out" / "results.jsonl"))["prompt"]
    capsys.readouterr()
    assert evr1([*alone, "--prompt", "neutral"]) == 2
    assert 'questions.prompt: "official" -> "neutral"' in capsys.readouterr().err
    assert evr1([*alone, "--prompt", "neutral", "--fresh"]) == 0
    assert next(rows(tmp_path / "out" / "results.jsonl"))["prompt"] != official


@pytest.mark.slow
def test_a_constant_run_is_flagged(common: list[str], engine: Letters, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine.text = ""
    assert evr1([*common, "--benchmark", "video-mme", "--n", "2"]) == 0
    assert "WARNING, this run may say nothing about the model: 18 of 18 answers are empty" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {"empty", "unparsed"} <= {sign["code"] for sign in summary["degenerate"]}


def test_what_is_wrong_is_told_before_a_model_is_loaded(common: list[str], engine: Letters, capsys: pytest.CaptureFixture[str]) -> None:
    for more, message in (
        (["--benchmark", "video-mme,video-mm"], "did you mean 'video-mme'"),
        (["--benchmark", "video-mme,video-mme"], "stands there twice"),
        (["--benchmark", "video-mme", "--variant", "nosuch"], "no variant 'nosuch'"),
        (["--benchmark", "video-mme", "--prompt", "nosuch"], "no prompt 'nosuch'"),
        (["--benchmark", "video-mme", "--budget", "nosuch"], "no budget 'nosuch'"),
        (["--benchmark", "video-mme", "--judge-url", "http://x/v1"], "--judge-url needs --judge-model"),
        (["--benchmark", "video-mme", "--data", "x.jsonl"], "give --benchmark or --data, not both"),
        (["--data", "x.jsonl", "--thinking"], "are for benchmarks"),
    ):
        assert evr1([*common, *more]) == 2, more
        assert message in capsys.readouterr().err
    assert engine.opened == 0


@pytest.mark.slow
def test_a_video_that_changed_under_its_name_is_not_mixed_in(
    common: list[str], engine: Letters, releases: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    shutil.copytree(releases / "video-mme", own)
    command = [*common, "--benchmark", "video-mme", "--root", str(own)]
    assert evr1([*command, "--limit", "1"]) == 0 and engine.asked == 1
    video = Path(next(rows(tmp_path / "out" / "results.jsonl"))["sample"]["media"][0]["path"])
    before, other = video.read_bytes(), (CLIPS / "bframes.mp4").read_bytes()
    video.write_bytes(other)
    assert evr1(command) == 2 and engine.asked == 1
    assert f"was given about another file than {video}" in capsys.readouterr().err
    video.unlink()  # gone: its answer stands
    assert evr1([*command, "--limit", "1"]) == 0
    video.write_bytes(before)  # other times of the file, the same content
    assert evr1([*command, "--limit", "2"]) == 0 and engine.asked == 2


def test_where_releases_are(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert root_of(Wanted("a"), tmp_path, alone=False) == tmp_path / "a"
    assert root_of(Wanted("b"), tmp_path, alone=True) == tmp_path
    with pytest.raises(RequestError, match="--root holds one folder for each"):
        root_of(Wanted("b"), tmp_path, alone=False)
    with pytest.raises(RequestError, match="needs --root"):
        root_of(Wanted("b"), None, alone=True)


def test_names_with_variants() -> None:
    assert read_names("video-mme, video-mme:subtitles", None) == [Wanted("video-mme"), Wanted("video-mme", "subtitles")]
    assert read_names("video-mme,", "subtitles") == [Wanted("video-mme", "subtitles")]
    with pytest.raises(RequestError, match="give names"):
        read_names(",")


@pytest.mark.parametrize("spec", catalogue().specs(BudgetSpec), ids=lambda spec: spec.name)
def test_budgets_are_configurations(spec: BudgetSpec) -> None:
    for benchmark in (None, *spec.benchmarks):
        config = Request(arguments=[], flags={}, budget=spec.name).config(benchmark)
        for key, flag in budget_flags(spec.name, benchmark).items():
            value: Any = config
            for name in key.split("."):
                value = getattr(value, name)
            assert value == flag.value
    assert spec.source


def test_what_is_written_out_goes_over_a_budget() -> None:
    config = Request(arguments=["media.evaluate.video.fps=7"], flags={}, budget="qwen3-vl").config("charades-sta")
    assert config.media.evaluate.video.fps == 7 and config.media.evaluate.video.max_frames == 2048
    assert Request(arguments=[], flags={}, budget="qwen3-vl").config("charades-sta").media.evaluate.video.fps == 4


def test_wordings_are_for_those_who_have_them() -> None:
    assert wording(object(), "plain", None, False) == (None, None)
    with pytest.raises(RequestError, match="no wordings of its own"):
        wording(object(), "plain", "official", False)


def test_the_table() -> None:
    head = {"value": 0.714, "low": 0.69, "high": 0.73, "n": 2700}
    numbers = {"Avg": {"value": 0.6, "low": 0.5, "high": 0.7, "n": 9}, "score": {"value": 0.72, "low": 0.7, "high": 0.74, "n": 2690}}
    counts = {"scored": 2680, "unparsed": 10, "failed": 2, "invalid_gold": 3, "excluded": 5}
    summary = {"metric": "score", "headline": head, "official": numbers, "n": 2700, "counts": counts, "truncated": 0.02, "notes": ["a | b"]}
    lines = [row("x", "v", summary), failed_row(Wanted("y"), "no such\nfolder")]
    assert lines[0]["official value"] == 0.72, "the official number of the headline's name"
    assert shown(lines)[0]["strict"] == "71.4 [69.0, 73.0]" and shown(lines)[0]["left out"] == "8" and shown(lines)[1]["strict"] == "–"
    text = markdown(lines, {"model": "m", "budget": None})
    assert text.startswith("- model: m\n\n| benchmark |") and "a \\| b" in text and "not evaluated: no such folder" in text
    assert len({line.count(" | ") for line in text.splitlines()[2:]}) == 1
    read = list(csv.DictReader(io.StringIO(comma_separated(lines))))
    assert read[0]["value"] == "0.714" and read[1]["value"] == ""
    assert interval(None) == "–" and interval(3.25, 3.0, 3.5) == "3.250 [3.000, 3.500]"

"""`evr1 benchmarks list|show|check`: what a release must have, and what is told of one that hasn't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evr1_benchmarks.release import Release
from evr1_core.evaluate.check import check_release
from evr1_core.media.store import MediaStore
from evr1_core.plugins import build, catalogue
from evr1_core.specs import BenchmarkSpec
from evr1_core.types import MediaRef, Sample
from tests.support.miniatures import video_mme
from tests.support.stored_runs import evr1

CLIPS = Path(__file__).resolve().parents[1] / "clips"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("releases") / "video-mme"
    root.mkdir()
    video_mme.make(root)
    return root


def found(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = evr1([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = found(["benchmarks", "list"], capsys)
    row = next(row for row in rows if row["name"] == "video-mme")
    assert code == 0 and row["questions"] == 2700 and row["variants"][:2] == ["no-subtitles", "subtitles"] and row["licence"]
    code, one = found(["benchmarks", "show", "video-mme"], capsys)
    assert code == 0 and one["variants"]["subtitles"] == 2700 and "official" in one["prompts"] and one["layout"] and "errata" not in one
    assert evr1(["benchmarks", "show", "video-mme"]) == 0
    text = capsys.readouterr().out
    assert "no-subtitles  2,700 questions" in text and "subtitle/{videoID}.srt" in text
    assert evr1(["benchmarks", "show", "video-mm"]) == 2 and "did you mean 'video-mme'" in capsys.readouterr().err


def test_what_is_listed_is_what_an_adapter_reads() -> None:
    """The first variant is the default of the commands: it must be the adapter's, an official one."""
    for spec in catalogue().specs(BenchmarkSpec):
        adapter = build(spec)
        if isinstance(adapter, Release):
            assert tuple(spec.variants) == (*adapter.variants, *(["easyvideor1"] if adapter.converted else [])), spec.name
            assert adapter.variants and (spec.variants[adapter.variants[0]] == spec.size), spec.name


def test_errata_on_request(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, one = found(["benchmarks", "show", "video-mme", "--root", str(release)], capsys)
    assert len(one["errata"]) == 1 and "002-3" in one["errata"][0]


def test_a_small_release_is_not_whole(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = found(["benchmarks", "check", "video-mme", "--root", str(release.parent)], capsys)
    assert code == 1 and (report["rows"], report["expected"], report["whole"]) == (9, 2700, False)
    assert report["media"] == report["files"] == 3 and report["media_faults"] == {} and report["gold"] == {}
    assert report["options"] == {"counts": {"4": 9}, "twice": ["002-3"], "single": []}
    assert report["prompt"]["text"].startswith("[user]\n<video>Select the best answer") and report["tokens"] is None
    assert evr1(["benchmarks", "check", "video-mme", "--root", str(release)]) == 1
    text = capsys.readouterr().out
    assert "9 of 2,700 expected" in text and "NOT whole" in text and "prompt of 000-1" in text


def test_wrong_requests(release: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, message in (
        (["--variant", "subtitle"], "no variant 'subtitle'; did you mean 'subtitles'"),
        (["--prompt", "offical"], "no prompt 'offical'; did you mean 'official'"),
        (["--budget", "nosuch"], "no budget 'nosuch'"),
    ):
        assert evr1(["benchmarks", "check", "video-mme", "--root", str(release), *more]) == 2
        assert message in capsys.readouterr().err
    assert evr1(["benchmarks", "check", "video-mme"]) == 2 and "needs --root" in capsys.readouterr().err


def test_token_plan_of_a_model(release: Path, tiny_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["benchmarks", "check", "video-mme", "--root", str(release), "--model", str(tiny_directory)]
    small = [f"--set={key}" for key in ("media.evaluate.video.max_frames=4", "media.evaluate.video.max_pixels=4096")]
    _, report = found([*common, *small], capsys)
    tokens = report["tokens"]
    assert tokens["measured"] == 9 and 0 < tokens["min"] <= tokens["median"] <= tokens["max"] and tokens["too_long"] == []
    assert "<|im_start|>user" in report["prompt"]["text"]
    _, report = found([*common, *small, f"--set=data.max_prompt_tokens={tokens['min']}"], capsys)
    assert report["tokens"]["limit"] == tokens["min"] and 0 < len(report["tokens"]["too_long"]) < 9


def rows_with_faults(folder: Path) -> list[Sample]:
    good, damaged = str(CLIPS / "gop8.mp4"), str(CLIPS / "trunc_nomoov.mp4")
    gone = str(folder / "gone.mp4")

    def row(name: str, path: str, answer: Any = "A", **more: Any) -> Sample:
        given = {"problem": "?", "problem_type": "multiple-choice", "options": ("x", "y"), **more}
        return Sample(id=name, answer=answer, media=(MediaRef(path, "video"),), **given)

    return [
        row("whole", good),
        row("gone-1", gone),
        row("gone-2", gone, options=("x", "X ")),
        row("damaged", damaged),
        row("letter", good, answer="E"),
        row("alone", good, options=("x",)),
        row("strange", good, problem_type="juggling"),
    ]


def test_faults_are_named(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "cache")
    try:
        report = check_release(rows_with_faults(tmp_path), store, expected=7)
    finally:
        store.close()
    assert not report["whole"] and report["questions_without_media"] == 3
    [missing], [damaged] = report["media_faults"]["missing"], report["media_faults"]["damaged"]
    assert missing["path"].endswith("gone.mp4") and missing["questions"] == ["gone-1", "gone-2"]
    assert damaged["path"].endswith("trunc_nomoov.mp4") and damaged["reason"]
    assert report["options"]["twice"] == ["gone-2"] and report["options"]["single"] == ["alone"]
    assert report["gold"].pop("unknown problem_type") == ["strange"]
    assert [ids for cause, ids in report["gold"].items() if "letter" in ids] == [["letter"]]

"""`evr1 media probe`, `evr1 cache build` and `evr1 cache stat`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from media_clips import CLIPS, clip

from evr1_cli.main import main


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    try:
        code = main(args)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().out


def test_probe_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "media", "probe", clip("vfr.mp4"), clip("rot90.mp4"), "--max-frames", "8", "--json")
    uneven, turned = json.loads(out)
    assert code == 0 and uneven["taken"]["indices"] == [0, 8, 9, 10, 11, 12, 13, 15] and not uneven["constant"]
    assert (turned["width"], turned["height"], turned["rotation"]) == (48, 64, 90)


def test_probe_names_every_bad_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "media", "probe", clip("zero.mp4"), clip("n31.mp4"), clip("audio_only.mp4"), clip("trunc_mid.mp4"))
    assert code == 1 and "0 bytes" in out and "streams: audio" in out and "could be decoded" not in out
    code, out = run(capsys, "media", "probe", clip("trunc_mid.mp4"), "--decode")
    assert code == 1 and "8 of 64 frames could be decoded" in out


def rows(path: Path, *names: str) -> str:
    path.write_text(
        "".join(
            json.dumps({"id": str(index), "problem": "<video>How many?", "answer": "3", "problem_type": "numerical", "videos": [name]})
            + "\n"
            for index, name in enumerate(names)
        )
    )
    return str(path)


def test_build_then_stat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = rows(tmp_path / "d.jsonl", "n31.mp4", "bframes.mp4", "n31.mp4", "trunc_mid.mp4")
    build = ("cache", "build", data, "--media-root", str(CLIPS), "--factor", "32", "--cache-dir", str(tmp_path / "cache"), "--json")
    code, out = run(capsys, *build)
    first = json.loads(out)
    assert code == 1 and [failure["code"] for failure in first["failures"]] == ["damaged"]
    assert (first["media"], first["decoded"], first["stored"], first["hits"]) == (3, 2, 2, 0)
    second = json.loads(run(capsys, *build)[1])
    assert (second["decoded"], second["hits"]) == (0, 2)
    code, out = run(capsys, "cache", "stat", "--cache-dir", str(tmp_path / "cache"), "--json")
    found = json.loads(out)
    assert code == 0 and (found["entries"], found["invalid"], found["unfinished"], found["kinds"]) == (2, 0, 0, {"video": 2})
    assert found["bytes"] == first["bytes"]


def test_build_needs_the_multiples_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("cache", "build", rows(tmp_path / "d.jsonl", "n31.mp4"))) == 2
    assert "add --model NAME, or --factor N" in capsys.readouterr().err

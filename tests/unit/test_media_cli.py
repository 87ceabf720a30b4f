"""`evr1 media probe`."""

from __future__ import annotations

import json

import pytest
from media_clips import clip

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
    assert code == 1 and "10 of 64 frames could be decoded" in out

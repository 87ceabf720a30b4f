"""`evr1 media probe`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from media_clips import clip
from PIL import Image

from evr1_cli.main import main
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors


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


def test_the_table_fits_and_shows_the_good_files_beside_the_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (100, 50), "red").save(tmp_path / "x.png")
    files = [clip(name) for name in ("vfr.mp4", "trunc_mid.mp4", "ntsc.mp4", "zero.mp4", "rot90.mp4", "text.mp4")]
    code, out = run(capsys, "media", "probe", *files, str(tmp_path / "x.png"), "--decode")
    lines = out.splitlines()
    assert code == 1 and len(lines) == 1 + 4 + 3 and max(map(len, lines[:5])) <= 100
    assert "29.97" in out and "~1.067" in out and "48x64" in out and "1 96x64" in out
    bad = {files[1]: "damaged", files[3]: "empty", files[5]: "damaged"}
    assert [tuple(line.split(": ")[:2]) for line in lines[5:]] == list(bad.items())


def test_probe_counts_tokens_and_frames(tiny_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "media", "probe", clip("bframes.mp4"), "--model", str(tiny_directory), "--frames", "6", "--json")
    (row,) = json.loads(out)
    taken = row["taken"]
    assert code == 0 and taken["frames"] == 6 and "sha256" not in row
    assert row["tokens"]["vision"] == 3 * (taken["height"] // 32) * (taken["width"] // 32) < row["tokens"]["prompt"]
    assert "tokens" not in json.loads(run(capsys, "media", "probe", clip("bframes.mp4"), "--json")[1])[0]


def test_the_digest_is_over_shape_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = json.loads(run(capsys, "media", "probe", clip("bframes.mp4"), "--decode", "--json")[1])
    frames = MediaStore(mode="decode-only").load(MediaRef(clip("bframes.mp4"), "video"), Budget(), PatchFactors(32)).frames
    shape = ",".join(map(str, frames.shape)).encode() + b"\n"
    assert row["sha256"] == hashlib.sha256(shape + frames.tobytes()).hexdigest()


def test_probe_of_a_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.new("RGB", (64, 64)).save(tmp_path / "x.png")
    code, out = run(capsys, "media", "probe", clip("long_gop.mp4"), str(tmp_path / "x.png"), "--start", "5", "--end", "10", "--json")
    part, picture = json.loads(out)
    assert code == 0 and part["taken"]["times"][0] == 5.0 and picture["taken"]["times"] == [0.0]

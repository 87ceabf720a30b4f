"""`evr1 cache build | stat | verify | prune`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from media_clips import CLIPS, clip

from evr1_cli.main import main
from evr1_core.config.load import load
from evr1_core.data.rows import read_samples
from evr1_core.media import build as build_module
from evr1_core.media.store import MediaStore
from evr1_core.policy.load import load_adapter
from evr1_core.rollout.setup import open_builder, open_store
from evr1_core.types import Budget, MediaRef, PatchFactors


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as stop:
        code = int(stop.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def rows(path: Path, *names: str) -> Path:
    row = {"problem": "<video>How many?", "answer": "3", "problem_type": "numerical"}
    path.write_text("".join(json.dumps({"id": str(index), **row, "videos": [name]}) + "\n" for index, name in enumerate(names)))
    return path


def build(data: Path, cache: Path, *more: object) -> tuple[object, ...]:
    return ("cache", "build", data, "--media-root", CLIPS, "--factor", "32", "--cache-dir", cache, *more)


def test_build_stat_verify_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    data = rows(tmp_path / "d.jsonl", "n31.mp4", "bframes.mp4", "n31.mp4", "trunc_mid.mp4")
    code, out, _ = run(capsys, *build(data, cache, "--json", "--report", tmp_path / "bad.json"))
    first = json.loads(out)
    assert code == 1 and [failure["code"] for failure in first["failures"]] == ["damaged"]
    assert (first["media"], first["stored"], first["already"], first["failed"]) == (3, 2, 0, 1)
    assert json.loads((tmp_path / "bad.json").read_text()) == first["failures"]
    code, out, _ = run(capsys, *build(data, cache, "--json", "--max-bad", "0.34"))
    second = json.loads(out)
    assert code == 0 and (second["stored"], second["already"]) == (0, 2)
    code, out, _ = run(capsys, "cache", "stat", "--cache-dir", cache, "--json")
    found = json.loads(out)
    assert code == 0 and (found["entries"], found["unreadable"], found["unfinished"], found["kinds"]) == (2, 0, 0, {"video": 2})
    assert found["bytes"] == first["bytes"] and found["codecs"] == {"raw": 2}
    assert run(capsys, "cache", "verify", "--cache-dir", cache)[0] == 0
    entry = next(cache.glob("*/*.safetensors"))
    entry.write_bytes(entry.read_bytes()[:-1])
    code, out, _ = run(capsys, "cache", "verify", "--cache-dir", cache, "--delete", "--json")
    assert code == 1 and [bad["path"] for bad in json.loads(out)["bad"]] == [str(entry)]
    assert "1 entries read" in run(capsys, "cache", "verify", "--cache-dir", cache)[1]
    code, out, _ = run(capsys, "cache", "prune", "--cache-dir", cache, "--max-size", "1KB", "--dry-run")
    assert code == 0 and "would remove 1 entries" in out
    code, out, _ = run(capsys, "cache", "prune", "--cache-dir", cache, "--max-size", "1KB", "--json")
    assert code == 0 and json.loads(out)["entries"] == 1 and not list(cache.glob("*/*.safetensors"))


def test_the_summary_groups_bad_files_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = rows(tmp_path / "d.jsonl", "n31.mp4", "text.mp4", "trunc_mid.mp4", "zero.mp4")
    code, out, err = run(capsys, *build(data, tmp_path / "cache", "--max-bad", "3"))
    assert code == 0 and out.index("damaged: 2") < out.index("text.mp4") < out.index("empty: 1")
    assert "4 media: 1 stored" in out and "3 bad" in out and "entries will take about" in err
    assert run(capsys, *build(data, tmp_path / "cache", "--max-bad", "2"))[0] == 1
    for wrong in ("many", "1.5", "-1"):
        code, _, err = run(capsys, *build(data, tmp_path / "cache", "--max-bad", wrong))
        assert code == 2 and "a count" in err


def test_a_disk_without_room_is_refused_with_the_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(100))
    data = rows(tmp_path / "d.jsonl", "one_frame.mp4")
    code, _, err = run(capsys, *build(data, tmp_path / "cache"))
    assert code == 2 and re.search(r"1 entries will take about \d+\.\d KiB", err) and "100 B free" in err and "--force" in err
    assert run(capsys, *build(data, tmp_path / "cache", "--force"))[0] == 0


def test_compact_entries_have_keys_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, cache = rows(tmp_path / "d.jsonl", "n31.mp4", "hevc10.mp4"), tmp_path / "cache"
    for codec in ("raw", "jpeg"):
        assert run(capsys, *build(data, cache, "--set", f"media.codec={codec}"))[0] == 0
    assert json.loads(run(capsys, "cache", "stat", "--cache-dir", cache, "--json")[1])["codecs"] == {"raw": 2, "jpeg": 2}
    budget, factors, ref = Budget(), PatchFactors(32), MediaRef(clip("n31.mp4"), "video")
    exact, hit = (MediaStore(cache, "cache-only", codec=codec).load(ref, budget, factors).frames for codec in ("raw", "jpeg"))
    missed = MediaStore(tmp_path / "other", codec="jpeg").load(ref, budget, factors).frames
    np.testing.assert_array_equal(missed, hit)
    assert 0 < np.abs(exact.astype(int) - hit).mean() < 4


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_a_phase_that_only_reads_the_cache(
    phase: Literal["train", "evaluate"], tmp_path: Path, tiny_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a build stores is what the phase asks for, also for media that a long row makes smaller; without it the file is named."""
    data, cache = rows(tmp_path / "d.jsonl", "n31.mp4", "long_gop.mp4"), tmp_path / "cache"
    settings = [f"media.{phase}.video.max_frames=12", "data.overlong=shrink", "data.max_prompt_tokens=180", "data.bad_rows=exclude"]
    settings.append(f"media.cache_dir={cache}")
    more = [word for setting in settings for word in ("--set", setting)]
    command = ("cache", "build", data, "--media-root", CLIPS, "--model", tiny_directory, "--phase", phase, *more)
    config = load([], [*settings, f"model.path={tiny_directory}", "media.mode=cache-only"], {}).config
    samples = read_samples(data, CLIPS).samples
    for built in (False, True):
        if built:
            assert run(capsys, *command)[0] == 0
        with closing(open_store(config)) as store:
            prompts, faults = open_builder(config, load_adapter(str(tiny_directory)), store, phase).build_batch(samples)
            assert store.counters.decoded == 0 and (len(prompts), len(faults)) == ((2, 0) if built else (0, 2))
        if built:
            assert max(len(prompt.token_ids) for prompt in prompts) <= 180
        else:
            assert "evr1 cache build" in faults[0].detail


def test_wrong_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = rows(tmp_path / "d.jsonl", "n31.mp4")
    code, _, err = run(capsys, "cache", "build", data)
    assert code == 2 and "add --model NAME, or --factor N" in err
    code, _, err = run(capsys, "cache", "prune", "--cache-dir", tmp_path, "--max-size", "50XB")
    assert code == 2 and "is no size" in err
    for command in ("stat", "verify", "prune"):
        code, _, err = run(capsys, "cache", command, "--cache-dir", tmp_path / "nothing")
        assert code == 2 and "no such folder" in err


MANY = 80
"""So many that a build is still at work when the signal comes."""


def test_ctrl_c_ends_with_the_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real process and a real signal: exit code 130, whole entries only, and the same command goes on."""
    for number in range(MANY):
        shutil.copy(clip("long_gop.mp4"), tmp_path / f"{number}.mp4")
        with open(tmp_path / f"{number}.mp4", "ab") as file:
            file.write(b"\0\0\0\x0cfree" + number.to_bytes(4, "big"))  # other bytes, the same video
    data = rows(tmp_path / "d.jsonl", *(f"{number}.mp4" for number in range(MANY)))
    command = [str(arg) for arg in build(data, tmp_path / "cache", "--media-root", tmp_path, "--workers", "1")]
    program = "import sys; from evr1_cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What a shell starts in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    until = time.monotonic() + 30
    while not list((tmp_path / "cache").glob("*/*.safetensors")) and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and f"interrupted; {MANY} media" in out and "left: run the same command again" in out, err
    assert run(capsys, "cache", "verify", "--cache-dir", tmp_path / "cache")[0] == 0

"""Building a cache ahead, and looking after it."""

from __future__ import annotations

import os
import shutil
import time
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import clip
from PIL import Image

from evr1_core.errors import MediaError, RequestError
from evr1_core.media import build as build_module
from evr1_core.media import crew
from evr1_core.media.build import Medium, Report, estimate, fill, survey
from evr1_core.media.cache import DAY, FrameCache
from evr1_core.media.crew import Progress
from evr1_core.media.entry import unfinished
from evr1_core.media.store import MediaStore
from evr1_core.media.upkeep import contents, parse_size, prune, verify
from evr1_core.types import Budget, MediaRef, PatchFactors

BUDGET, FACTORS = Budget(), PatchFactors(32)


def media(*names: str) -> list[Medium]:
    return [(MediaRef(name if "/" in name else clip(name), "video"), BUDGET) for name in names]


def run(store: MediaStore, wanted: list[Medium], **more: Any) -> Report:
    return fill(store, survey(store, wanted, FACTORS), FACTORS, **more)


def test_build_once_then_nothing_is_decoded(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, isolate=False)
    first = run(store, media("n31.mp4", "bframes.mp4", "n31.mp4", "trunc_mid.mp4", "zero.mp4"))
    assert (first.media, first.stored, first.already, first.duplicates, first.left) == (4, 2, 0, 0, 0)
    assert sorted(failure.code for failure in first.failures) == ["damaged", "empty"] and not first.interrupted
    assert first.bytes == sum(path.stat().st_size for path in FrameCache(tmp_path).entries())
    later = MediaStore(tmp_path, isolate=False)
    again = run(later, media("n31.mp4", "bframes.mp4", "one_frame.mp4"))
    assert (again.stored, again.already, later.counters.decoded) == (1, 2, 1)


def test_same_content_at_two_paths_and_the_same_name_in_two_folders(tmp_path: Path) -> None:
    for folder, name in (("a", "n31.mp4"), ("b", "bframes.mp4"), ("c", "n31.mp4")):
        (tmp_path / folder).mkdir()
        shutil.copy(clip(name), tmp_path / folder / "video_1.mp4")
    store = MediaStore(tmp_path / "cache", isolate=False)
    paths = [str(tmp_path / folder / "video_1.mp4") for folder in "abc"]
    report = run(store, media(*paths))
    assert (report.media, report.stored, report.duplicates) == (3, 2, 1)
    frames = [store.load(ref, BUDGET, FACTORS).source_frames for ref, _ in media(*paths)]
    assert frames == [31, 32, 31] and store.counters.decoded == 2


def test_a_bad_file_is_named_under_each_of_its_paths(tmp_path: Path) -> None:
    shutil.copy(clip("trunc_mid.mp4"), tmp_path / "copy.mp4")
    report = run(MediaStore(tmp_path / "cache", isolate=False), media("trunc_mid.mp4", str(tmp_path / "copy.mp4")))
    assert {failure.path for failure in report.failures} == {clip("trunc_mid.mp4"), str(tmp_path / "copy.mp4")}


def test_the_estimate_is_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = media("n31.mp4", "bframes.mp4", "gop8.mp4", "trunc_nomoov.mp4")
    store = MediaStore(tmp_path / "cache", isolate=False)
    found = survey(store, wanted, FACTORS)
    needed = estimate(store, found, FACTORS)
    report = fill(store, found, FACTORS)
    assert needed.fits and needed.sampled == 4 and needed.bytes < report.bytes < needed.bytes + 3 * 10_000
    monkeypatch.setattr(build_module, "SAMPLED", 2)
    monkeypatch.setattr(build_module.shutil, "disk_usage", lambda path: namedtuple("Usage", "free")(1_000))
    sample = estimate(MediaStore(tmp_path / "other", isolate=False), found, FACTORS)
    assert sample.sampled == 2 and not sample.fits


def test_interrupted_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["n31.mp4", "bframes.mp4", "gop8.mp4", "one_frame.mp4"]

    def stop(progress: Progress) -> None:
        if progress.done:
            raise KeyboardInterrupt

    store = MediaStore(tmp_path, isolate=False)
    real = store.load
    monkeypatch.setattr(store, "load", lambda *given: (time.sleep(0.4), real(*given))[1])
    report = run(store, media(*names), workers=1, notify=stop)
    assert report.interrupted and report.stored >= 1 and report.left == 4 - report.stored
    assert not verify(tmp_path).bad and contents(tmp_path).unfinished == 0
    rest = run(MediaStore(tmp_path, isolate=False), media(*names))
    assert (rest.already, rest.stored, rest.left) == (report.stored, 4 - report.stored, 0)


def test_what_hangs_is_named_while_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MediaStore(tmp_path, isolate=False)
    real, named = store.load, []

    def slow(ref: MediaRef, *given: Any) -> Any:
        if ref.path.endswith("gop8.mp4"):
            time.sleep(1.2)  # twice the time between two reports
            raise MediaError(ref.path, "timeout", "killed")
        return real(ref, *given)

    monkeypatch.setattr(store, "load", slow)
    report = run(store, media("gop8.mp4", "n31.mp4"), notify=lambda progress: named.append(progress.slowest()))
    seen = [place for place in named if place is not None]
    assert any(path.endswith("gop8.mp4") and 0.3 < seconds < 5 for path, seconds in seen) and report.failures[0].code == "timeout"


def test_a_decode_that_never_ends_does_not_hold_up_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "GRACE", 0.1)
    store = MediaStore(tmp_path, isolate=False)
    monkeypatch.setattr(store, "load", lambda *_: time.sleep(30))

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    began = time.monotonic()
    assert run(store, media("n31.mp4"), notify=stop).interrupted and time.monotonic() - began < 5


def test_a_full_disk_ends_the_build(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "cache", isolate=False)
    found = survey(store, media("n31.mp4", "bframes.mp4", "gop8.mp4"), FACTORS)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("a file where the folder should be")
    report = fill(store, found, FACTORS, workers=1)
    assert (report.not_stored, report.stored, report.left) == (1, 0, 2)


def test_a_fault_of_ours_is_not_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MediaStore(tmp_path, isolate=False)
    monkeypatch.setattr(store, "load", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(store, media("n31.mp4"))


def age_of(path: Path, seconds: float) -> None:
    """Make a file look as if it was last used so long ago."""
    os.utime(path, (time.time() - seconds, time.time() - seconds))


@pytest.fixture
def full(tmp_path: Path) -> tuple[Path, list[Path]]:
    """A cache of four entries, the first one used longest ago."""
    pictures: list[Medium] = []
    for number in range(4):
        Image.fromarray(np.full((64, 64, 3), number * 60, np.uint8)).save(tmp_path / f"{number}.png")
        pictures.append((MediaRef(str(tmp_path / f"{number}.png"), "image"), BUDGET))
    store = MediaStore(tmp_path / "cache", isolate=False)
    run(store, pictures)
    paths = [FrameCache(tmp_path / "cache").path(store.key(*picture, FACTORS)) for picture in pictures]
    for age, path in zip((40, 20, 3, 0), paths, strict=True):
        age_of(path, age * DAY)
    return tmp_path / "cache", paths


def test_contents(full: tuple[Path, list[Path]]) -> None:
    directory, paths = full
    (paths[0].parent / ".writing-other-1-ab.tmp").write_bytes(b"abc")
    paths[1].write_bytes(b"no entry")
    found = contents(directory)
    assert (found.entries, found.unreadable, found.unfinished, found.unfinished_bytes, found.hashes) == (4, 1, 1, 3, 4)
    assert found.kinds == {"image": 3} and found.codecs == {"raw": 3} and list(found.decoders.values()) == [3]
    assert found.oldest_use and found.newest_use and found.newest_use - found.oldest_use > 30 * DAY


def test_verify_reads_everything_and_removes_what_is_bad(full: tuple[Path, list[Path]]) -> None:
    directory, paths = full
    assert verify(directory).bad == ()
    content = bytearray(paths[2].read_bytes())
    content[-1] ^= 1
    paths[2].write_bytes(content)
    shutil.copy(paths[0], directory / paths[0].parent.name / f"{paths[0].stem[:2]}{'0' * 62}.safetensors")
    found = verify(directory, delete=True)
    assert found.entries == 5 and sorted(failure.reason[:12] for failure in found.bad) == ["it is the en", "the checksum"]
    assert verify(directory).bad == () and not paths[2].exists() and paths[0].exists()


def test_prune_takes_the_least_recently_used_first(full: tuple[Path, list[Path]]) -> None:
    directory, paths = full
    size = paths[0].stat().st_size
    dry = prune(directory, unused_days=30, dry_run=True)
    assert (dry.entries, dry.kept) == (1, 3) and all(path.exists() for path in paths)
    assert prune(directory, unused_days=30).entries == 1 and not paths[0].exists()
    assert prune(directory, max_bytes=2 * size).entries == 1 and not paths[1].exists()
    done = prune(directory, max_bytes=10 * size)
    assert (done.entries, done.kept, done.kept_bytes) == (0, 2, 2 * size)
    assert prune(directory, max_bytes=0).kept == 0


def test_prune_takes_what_killed_planners_left(full: tuple[Path, list[Path]]) -> None:
    directory, _ = full
    (directory / "plans").mkdir()
    left = unfinished(directory / "plans")
    left.write_bytes(b"x")
    age_of(left, 7_200)
    assert contents(directory).unfinished == 1 and prune(directory).unfinished == 1 and not left.exists()


def test_prune_leaves_writers_and_readers_alone(full: tuple[Path, list[Path]]) -> None:
    directory, paths = full
    old, new = paths[0].parent / ".writing-host-1-aa.tmp", paths[0].parent / ".writing-host-2-bb.tmp"
    for path, age in ((old, 7_200), (new, 60)):
        path.write_bytes(b"x")
        age_of(path, age)
    memo = next((directory / "hashes").glob("*/*"))
    age_of(memo, 90 * DAY)
    mapped = FrameCache(directory).get(paths[0].stem)
    assert mapped is not None
    before = mapped.frames.copy()
    # That read was a use, so the entry is the youngest now; size alone lets it go.
    done = prune(directory, max_bytes=0, unused_days=30)
    assert (done.entries, done.unfinished, done.hashes) == (4, 1, 1) and new.exists() and not old.exists()
    np.testing.assert_array_equal(mapped.frames, before)


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1000", 1000), ("500MB", 500 * 10**6), ("2GiB", 2 * 2**30), ("1.5 tb", 1_500 * 10**9), ("7b", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "5 parsecs", "1e9", "5XB", "1.2.3MB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(RequestError, match="is no size"):
        parse_size(text)


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    shutil.copy(clip("n31.mp4"), "clip.mp4")
    exec(page.split("```python\n")[1].split("```")[0], {})
    assert capsys.readouterr().out == "1 0 ()\n"

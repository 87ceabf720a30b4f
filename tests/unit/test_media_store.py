"""The store: each medium decoded once, nothing decoded when warm, and no file that stops the caller."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import clip, video
from PIL import Image

from evr1_core.errors import MediaError, RequestError
from evr1_core.media import decode as decode_module
from evr1_core.media import store as store_module
from evr1_core.media import worker as worker_module
from evr1_core.media.store import MediaStore, default_cache_dir
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, VideoBudget

BUDGET, FACTORS = Budget(), PatchFactors(32, 2)
GOOD = ["bframes.mp4", "vfr.webm", "rot90.mp4", "start_offset.mkv", "one_frame.mp4", "two_frame.mp4", "anim.gif", "tall.mp4", "hevc10.mp4"]


@pytest.fixture
def picture(tmp_path: Path) -> MediaRef:
    Image.effect_noise((200, 100), 80).save(tmp_path / "x.png")
    return MediaRef(str(tmp_path / "x.png"), "image")


def test_cold_once_warm_never(tmp_path: Path, picture: MediaRef) -> None:
    refs = [*map(video, GOOD), picture]
    cold = MediaStore(tmp_path / "cache")
    first = [cold.load(ref, BUDGET, FACTORS) for ref in refs * 2]
    assert (cold.counters.decoded, cold.counters.stored, cold.counters.hits) == (len(refs), len(refs), len(refs))
    assert cold.counters.bytes == sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.safetensors"))
    warm = MediaStore(tmp_path / "cache", mode="cache-only")
    second = [warm.load(ref, BUDGET, FACTORS) for ref in refs]
    assert warm.counters.as_dict() == {"decoded": 0, "hits": len(refs), "misses": 0, "stored": 0, "store_failed": 0, "bytes": 0}
    assert warm.hashes.computed == 0, "a warm step does not even read the files"
    for ref, one, other in zip(refs, first, second, strict=False):
        planned = warm.plan(ref, BUDGET, FACTORS)
        np.testing.assert_array_equal(one.frames, other.frames)
        assert one.frames.dtype == np.uint8 and one.kind == ref.kind and one.key == other.key == warm.key(ref, BUDGET, FACTORS)
        assert (planned.indices, planned.times, (planned.height, planned.width)) == (one.indices, one.times, one.size)
        assert planned.sampled_fps == one.sampled_fps and planned.source_fps == one.source_fps


def test_in_process_and_child_give_the_same(tmp_path: Path) -> None:
    here, child = (MediaStore(tmp_path, mode="decode-only", isolate=isolate) for isolate in (False, True))
    for ref in [*map(video, GOOD), video("long_gop.mp4", 3.0, 9.5)]:
        one, other = here.load(ref, BUDGET, FACTORS), child.load(ref, BUDGET, FACTORS)
        np.testing.assert_array_equal(one.frames, other.frames)
        assert (one.times, one.indices, one.rotation, one.span, one.key) == (
            other.times,
            other.indices,
            other.rotation,
            other.span,
            other.key,
        )
    assert child._guard is not None and child._guard.started == 1, "the child is kept"
    assert list(tmp_path.iterdir()) == [], "decode-only leaves no trace"


def test_rate_and_clock_of_a_part(tmp_path: Path) -> None:
    part = MediaStore(tmp_path).load(video("long_gop.mp4", 5.0, 10.0), BUDGET, FACTORS)
    assert part.times[0] == 5.0 and part.times[-1] <= 10.0 and part.source_frames == 600
    assert part.sampled_fps == pytest.approx(2.0, rel=0.02)
    capped = MediaStore(tmp_path).load(video("long_gop.mp4"), Budget(video=VideoBudget(max_frames=16)), FACTORS)
    assert capped.sampled_fps == pytest.approx(0.8)


def test_the_same_content_elsewhere_is_a_hit_and_new_content_is_not(tmp_path: Path) -> None:
    store = MediaStore(tmp_path / "cache")
    copy = tmp_path / "moved.mp4"
    shutil.copy(clip("bframes.mp4"), copy)
    store.load(video("bframes.mp4"), BUDGET, FACTORS)
    store.load(MediaRef(str(copy), "video"), BUDGET, FACTORS)
    assert (store.counters.decoded, store.counters.hits) == (1, 1)
    shutil.copy(clip("n31.mp4"), copy)
    assert store.load(MediaRef(str(copy), "video"), BUDGET, FACTORS).source_frames == 31


def test_another_decoder_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MediaStore(tmp_path).load(video("bframes.mp4"), BUDGET, FACTORS)
    version = decode_module.decoder_version("video")
    for module in (store_module, worker_module):
        monkeypatch.setattr(module, "decoder_version", lambda kind: version + "1")
    later = MediaStore(tmp_path, isolate=False)
    assert later.load(video("bframes.mp4"), BUDGET, FACTORS).decoder == version + "1" and later.counters.decoded == 1


def test_cache_only_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="evr1 cache build") as caught:
        MediaStore(tmp_path, mode="cache-only").load(video("bframes.mp4"), BUDGET, FACTORS)
    assert caught.value.code == "missing"


def test_threads_share_one_decode(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        clips = list(pool.map(lambda _: store.load(video("gop8.mp4"), BUDGET, FACTORS), range(16)))
    assert store.counters.decoded == 1 and store.counters.hits == 15
    assert all(np.array_equal(clips[0].frames, other.frames) for other in clips)


def test_load_many_keeps_order_and_errors(tmp_path: Path) -> None:
    refs = [video("bframes.mp4"), video("zero.mp4"), video("n31.mp4"), video("trunc_mid.mp4"), video("text.mp4")]
    found = MediaStore(tmp_path).load_many(refs, BUDGET, FACTORS, workers=2)
    assert [each.code if isinstance(each, MediaError) else each.source_frames for each in found] == [32, "empty", 31, "damaged", "damaged"]
    with pytest.raises(MediaError):
        raise found[1]  # type: ignore[misc]


def test_a_full_disk_does_not_stop_the_work(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    store = MediaStore(tmp_path / "cache")
    assert len(store.load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8
    assert (store.counters.store_failed, store.counters.stored, store.counters.decoded) == (1, 0, 1)


@pytest.mark.parametrize("mode", ["auto", "decode-only"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    target = tmp_path / "x.mp4"
    shutil.copy(clip("n31.mp4"), target)
    store = MediaStore(tmp_path / "cache", mode, isolate=False)
    real = worker_module.plan

    def late(*given: Any) -> Any:
        shutil.copy(clip("bframes.mp4"), target)
        return real(*given)

    monkeypatch.setattr(worker_module, "plan", late)
    with pytest.raises(MediaError, match=r"changed while it was read|could be decoded"):
        store.load(MediaRef(str(target), "video"), BUDGET, FACTORS)
    assert store.counters.stored == 0 and not list(tmp_path.rglob("*.safetensors"))


CUT = video("trunc_mid.mp4")
HALF = Budget(video=VideoBudget(fps=4.0, min_frames=32, max_frames=32))


def test_a_share_of_missing_frames_is_tolerated(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """32 of 64 frames are chosen and 10 can be decoded: the clip says which ones came, and when."""
    store = MediaStore(tmp_path, tolerate=0.9)
    with caplog.at_level("WARNING"):
        loaded = [store.load(CUT, HALF, FACTORS) for _ in range(3)]
    for part in loaded:
        planned = store.plan(CUT, HALF, FACTORS)
        count = len(part.indices)
        assert part.frames.shape == (count, 3, planned.height, planned.width) and part.missing == 32 - count and 4 <= count <= 10
        assert part.indices == planned.indices[:count] and part.times == planned.times[:count] == tuple(i / 8 for i in part.indices)
    assert len(caplog.records) == 1, "one line for one file"
    assert f"{CUT.path}: {loaded[0].missing} of the 32 chosen frames could not be decoded and are left out" in caplog.text
    assert store.counters.decoded == 1
    exact = MediaStore(tmp_path, "decode-only", tolerate=0.9, isolate=False).load(CUT, HALF, FACTORS)
    assert np.array_equal(exact.frames, loaded[0].frames) and exact.indices == loaded[0].indices


@pytest.mark.parametrize("mode", ["auto", "cache-only"])
def test_what_a_lax_store_kept_is_not_given_to_a_strict_one(tmp_path: Path, mode: Any) -> None:
    MediaStore(tmp_path, tolerate=0.9).load(CUT, HALF, FACTORS)
    for tolerate in (0.0, 0.5):
        with pytest.raises(MediaError, match=r"of the 32 chosen frames could not be decoded; media\.tolerate is") as caught:
            MediaStore(tmp_path, mode, tolerate=tolerate).load(CUT, HALF, FACTORS)
        assert caught.value.code == "damaged"


def test_more_missing_frames_than_tolerated(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, tolerate=0.3)
    with pytest.raises(
        MediaError, match=r"10 of 64 frames could be decoded; .* of the 32 chosen ones are missing, media\.tolerate is 0\.3"
    ):
        store.load(CUT, HALF, FACTORS)
    assert store.counters.stored == 0 and not [path for path in tmp_path.rglob("*") if path.suffix in (".safetensors", ".tmp")]


def test_a_part_that_is_whole_needs_no_tolerance(tmp_path: Path) -> None:
    assert MediaStore(tmp_path).load(video("trunc_mid.mp4", 0.0, 0.9), BUDGET, FACTORS).missing == 0


def test_after_a_full_disk_nothing_is_decoded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(worker_module.EntryWriter, "add", full)
    store = MediaStore(tmp_path, isolate=False)
    asked: list[bool] = []
    real = store_module.perform
    monkeypatch.setattr(store_module, "perform", lambda request, *more: (asked.append(request.entry is not None), real(request, *more)))
    for name in ("bframes.mp4", "n31.mp4", "vfr.mp4"):
        assert store.load(video(name), BUDGET, FACTORS).missing == 0
    assert asked == [True, False, False, False], "one try, then none for a while"
    assert (store.counters.decoded, store.counters.store_failed, store.counters.stored) == (3, 3, 0)
    assert caplog.text.count("the disk is full") == 1 and not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    store._full_until = 0.0
    store.load(video("gop8.mp4"), BUDGET, FACTORS)
    assert store.counters.stored == 1


def test_many_budgets_and_plans(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    refs = [video("bframes.mp4"), video("zero.mp4"), video("bframes.mp4")]
    budgets = [Budget(video=VideoBudget(max_frames=most)) for most in (4, 8, 8)]
    plans, clips = store.plan_many(refs, budgets, FACTORS, 2), store.load_many(refs, budgets, FACTORS, 2)
    assert [each.code if isinstance(each, MediaError) else each.frames for each in plans] == [4, "empty", 8]
    assert [each.code if isinstance(each, MediaError) else len(each.frames) for each in clips] == [4, "empty", 8]
    with pytest.raises(ValueError, match="zip"):
        store.plan_many(refs, budgets[:2], FACTORS)


def test_threads_of_a_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One caller has the whole processor, many share it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    store = MediaStore(tmp_path)
    for callers, threads in ((1, 8), (2, 8), (6, 8), (7, 1), (24, 1)):
        with store._calling(callers):
            assert store._threads() == threads


def test_many_threads_and_files(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for name in GOOD:
                store.load(video(name), BUDGET, FACTORS)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and store.counters.decoded == len(GOOD) and not store._running


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVR1_CACHE_DIR", str(tmp_path))
    assert MediaStore().cache_dir == default_cache_dir() == tmp_path / "frames"
    monkeypatch.delenv("EVR1_CACHE_DIR")
    assert default_cache_dir() == Path.home() / ".cache" / "evr1" / "frames"


def test_plans_are_forgotten_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_PLANS", 3)
    store = MediaStore(tmp_path)
    for _ in range(2):
        for name in GOOD:
            store.plan(video(name), BUDGET, FACTORS)
    assert [Path(asked[1].path).name for asked in store._plans] == GOOD[-3:]


def test_compact_frames_do_not_depend_on_the_disk(tmp_path: Path) -> None:
    """What is used where an entry can't be stored is what would have been read from it."""
    (tmp_path / "no folder").write_text("")
    kept, lost = (MediaStore(tmp_path / name, codec="jpeg").load(video("bframes.mp4"), BUDGET, FACTORS) for name in ("cache", "no folder"))
    exact = MediaStore(tmp_path, "decode-only").load(video("bframes.mp4"), BUDGET, FACTORS)
    assert np.array_equal(kept.frames, lost.frames) and not np.array_equal(exact.frames, lost.frames)


def test_files_that_go_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a file and the read of it, or between plan and load."""
    store, path = MediaStore(tmp_path / "cache"), tmp_path / "x.mp4"
    ref = MediaRef(str(path), "video")
    shutil.copy(clip("n31.mp4"), path)
    assert store.plan(ref, BUDGET, FACTORS).frames == 6
    path.unlink()
    monkeypatch.setattr(store_module, "check_source", lambda ref: ref.path)
    [found] = store.load_many([ref], BUDGET, FACTORS)
    assert isinstance(found, MediaError) and found.code == "missing"
    path.mkdir()
    [found] = store.load_many([ref], BUDGET, FACTORS)
    assert isinstance(found, MediaError) and found.code == "empty" and found.reason.startswith("the folder holds no pictures")


def test_a_size_that_no_memory_holds(tmp_path: Path, picture: MediaRef) -> None:
    huge = Budget(VideoBudget(min_pixels=10**12, max_pixels=10**13), ImageBudget(10**12, 10**13))
    store = MediaStore(tmp_path)
    for ref in (video("two_frame.mp4"), picture):
        for act in (store.plan, store.load):
            with pytest.raises(MediaError, match=r"unsupported: the budget makes it \d+x\d+ pixels; at most 178,956,970 are made"):
                act(ref, huge, FACTORS)


def test_an_error_ends_the_rest_of_many(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    with pytest.raises(RequestError, match="start is -1"):
        store.load_many([video("bframes.mp4", -1.0), *map(video, GOOD)], BUDGET, FACTORS, workers=1)
    assert store.counters.decoded <= 1

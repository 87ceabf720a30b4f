"""The store: each medium decoded once, nothing decoded when warm, and no file that stops the caller."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_clips import clip
from PIL import Image

from evr1_core.errors import Evr1Error, MediaError, RequestError
from evr1_core.media import decode as decode_module
from evr1_core.media import guard as guard_module
from evr1_core.media import store as store_module
from evr1_core.media import worker as worker_module
from evr1_core.media.guard import DecodeGuard
from evr1_core.media.store import MediaStore, default_cache_dir
from evr1_core.types import Budget, ImageBudget, MediaRef, PatchFactors, VideoBudget

BUDGET, FACTORS = Budget(), PatchFactors(32, 2)
GOOD = ["bframes.mp4", "vfr.webm", "rot90.mp4", "start_offset.mkv", "one_frame.mp4", "two_frame.mp4", "anim.gif", "tall.mp4", "hevc10.mp4"]


def video(name: str, start: float | None = None, end: float | None = None) -> MediaRef:
    return MediaRef(clip(name), "video", start, end)


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


def child(tmp_path: Path, body: str) -> list[str]:
    """A decoding child that does something else on a request whose file is called hang."""
    script = tmp_path / "child.py"
    script.write_text(
        "import os, signal, sys, time\nfrom evr1_core.media import worker\nreal = worker.perform\n"
        f"def perform(request, send, until):\n    if 'hang' in request.path:\n        {body}\n    real(request, send, until)\n"
        "worker.perform = perform\nworker.main(int(sys.argv[1]), int(sys.argv[2]))\n"
    )
    return [sys.executable, str(script)]


def guarded(tmp_path: Path, body: str, deadline: float) -> tuple[MediaStore, MediaRef]:
    shutil.copy(clip("n31.mp4"), tmp_path / "hang.mp4")
    store = MediaStore(tmp_path / "cache", deadline=deadline)
    store._guard = DecodeGuard(deadline, child(tmp_path, body))
    return store, MediaRef(str(tmp_path / "hang.mp4"), "video")


def test_a_decode_that_hangs_is_killed_and_named(tmp_path: Path) -> None:
    store, hanging = guarded(tmp_path, "time.sleep(600)", 2.0)
    began = time.monotonic()
    with pytest.raises(MediaError, match=r"hang\.mp4: timeout: the decode did not end within 2 s and was killed") as caught:
        store.load(hanging, BUDGET, FACTORS)
    assert caught.value.code == "timeout" and time.monotonic() - began < 10
    with pytest.raises(MediaError, match="timeout"):
        store.plan(hanging, BUDGET, FACTORS)
    assert len(store.load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8, "the next file gets a new child"


def test_a_writer_killed_at_its_deadline_leaves_no_file(tmp_path: Path) -> None:
    store, hanging = guarded(tmp_path, "worker.EntryWriter.commit = lambda *_: (open(request.path + '.late', 'w'), time.sleep(600))", 2.0)
    with pytest.raises(MediaError, match="timeout"):
        store.load(hanging, BUDGET, FACTORS)
    assert (tmp_path / "hang.mp4.late").exists(), "the frames were written"
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.parent.parent.name != "hashes"] == []


def test_a_broken_installation_is_no_damaged_file(tmp_path: Path) -> None:
    store = MediaStore(tmp_path)
    store._guard = DecodeGuard(30.0, [sys.executable, "-c", "import a_library_that_is_missing"])
    for act in (store.load, store.plan):
        with pytest.raises(
            Evr1Error, match=r"can't be started: it ended with status 1\..*No module named 'a_library_that_is_missing'"
        ) as caught:
            act(video("bframes.mp4"), BUDGET, FACTORS)
        assert not isinstance(caught.value, MediaError)
    with pytest.raises(Evr1Error, match="can't be started"):
        store.load_many([video("bframes.mp4")] * 2, BUDGET, FACTORS)


def test_a_child_that_never_gets_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "START", 0.5)
    store = MediaStore(tmp_path)
    store._guard = DecodeGuard(30.0, [sys.executable, "-c", "import time; time.sleep(600)"])
    with pytest.raises(Evr1Error, match=r"was ended by SIGKILL\. It said: nothing within 0\.5 s"):
        store.load(video("bframes.mp4"), BUDGET, FACTORS)


def test_files_beside_the_user_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "av.py").write_text("raise ImportError('not the library')")
    monkeypatch.chdir(tmp_path)
    assert len(MediaStore(tmp_path, "decode-only").load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8


def test_a_lower_limit_of_the_system_holds(tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30,) * 2)\n"
        "from evr1_core.media.store import MediaStore\nfrom evr1_core.types import *\n"
        f"ref = MediaRef({clip('bframes.mp4')!r}, 'video')\n"
        f"print(len(MediaStore({str(tmp_path)!r}).load(ref, Budget(), PatchFactors(32, 2)).frames))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert done.stdout == "8\n", done.stderr


@pytest.mark.parametrize(("body", "message"), [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("os._exit(3)", "status 3")])
def test_a_decoder_that_crashes_is_named(tmp_path: Path, body: str, message: str) -> None:
    store, crashing = guarded(tmp_path, body, 30.0)
    for _ in range(2):
        with pytest.raises(MediaError, match=message):
            store.load(crashing, BUDGET, FACTORS)
    assert len(store.load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8


def test_a_child_that_died_between_two_requests_is_replaced(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, mode="decode-only")
    store.load(video("bframes.mp4"), BUDGET, FACTORS)
    assert store._guard is not None
    process = store._guard._idle[0].process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(store.load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8 and store._guard.started == 2


def test_a_child_does_not_serve_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "MOST_REQUESTS", 2)
    store = MediaStore(tmp_path, mode="decode-only")
    for _ in range(5):
        store.load(video("bframes.mp4"), BUDGET, FACTORS)
    assert store._guard is not None and store._guard.started == 3 and len(store._guard._idle) == 1


def test_children_end_with_their_store(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, mode="decode-only")
    store.load(video("bframes.mp4"), BUDGET, FACTORS)
    assert store._guard is not None
    process = store._guard._idle[0].process
    del store
    assert process.poll() is not None


def test_a_forked_copy_of_a_store_works(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, mode="decode-only")
    store.load(video("bframes.mp4"), BUDGET, FACTORS)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if len(store.load(video("n31.mp4"), BUDGET, FACTORS).frames) == 6 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(store.load(video("n31.mp4"), BUDGET, FACTORS).frames) == 6


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


def test_a_crash_in_the_middle_of_the_frames(tmp_path: Path) -> None:
    """Some frames came through the pipe already."""
    body = (
        "real(request, lambda message, frame: (send(message, frame), 'frame' in message and os.kill(os.getpid(), signal.SIGSEGV)), until)"
    )
    store, crashing = guarded(tmp_path, body, 30.0)
    store.mode = "decode-only"
    with pytest.raises(MediaError, match="SIGSEGV"):
        store.load(crashing, BUDGET, FACTORS)


@pytest.mark.parametrize("name", ["hang.png", "hang.mp4"])
def test_images_and_headers_are_read_in_the_child_too(tmp_path: Path, picture: MediaRef, name: str) -> None:
    store, _ = guarded(tmp_path, "time.sleep(600)", 1.0)
    shutil.copy(picture.path if name.endswith("png") else clip("n31.mp4"), tmp_path / name)
    ref = MediaRef(str(tmp_path / name), "image" if name.endswith("png") else "video")
    for act in (store.load, store.plan):
        with pytest.raises(MediaError, match="timeout"):
            act(ref, BUDGET, FACTORS)
    with pytest.raises(MediaError, match="timeout"):
        store.look(ref.path, BUDGET, FACTORS)


def test_memory_is_limited(tmp_path: Path) -> None:
    store, greedy = guarded(tmp_path, "worker.probe = lambda *_: bytearray(2**33)", 30.0)
    with pytest.raises(MediaError, match="more memory than a decoding process may use") as caught:
        store.load(greedy, BUDGET, FACTORS)
    assert caught.value.code == "unsupported"


def test_a_child_ends_with_its_caller(tmp_path: Path) -> None:
    """Killed without a chance to clean up, and in the middle of a decode that hangs."""
    shutil.copy(clip("n31.mp4"), tmp_path / "hang.mp4")
    body = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        "import sys\nfrom evr1_core.media.guard import DecodeGuard\nfrom evr1_core.media.worker import Request\n"
        "from evr1_core.types import Budget, PatchFactors\n"
        f"request = Request({str(tmp_path / 'hang.mp4')!r}, 'video', None, None, Budget(), PatchFactors(32))\n"
        f"DecodeGuard(600, {child(tmp_path, body)!r}).ask(request)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    pid = int((tmp_path / "pid").read_text())
    caller.kill()
    caller.wait()
    while (Path("/proc") / str(pid) / "cmdline").exists() and (Path("/proc") / str(pid) / "cmdline").read_bytes():
        assert time.monotonic() < until, "the child lives on"
        time.sleep(0.05)


def test_descriptors_and_memory_stay_over_many_files(tmp_path: Path) -> None:
    store = MediaStore(tmp_path, "decode-only")
    refs = [video("hevc10.mp4"), video("text.mp4"), video("trunc_mid.mp4")]
    store.load_many(refs * 10, BUDGET, FACTORS, workers=1)
    assert store._guard is not None
    process = store._guard._idle[0].process.pid
    gc.collect()  # stores of other tests
    before = usage(os.getpid())[0], *usage(process)
    store.load_many(refs * 167, BUDGET, FACTORS, workers=1)
    after = usage(os.getpid())[0], *usage(process)
    assert store._guard.started == 1 and after[:2] == before[:2] and after[2] < before[2] + 25 * 2**20


def usage(pid: int) -> tuple[int, int]:
    """(open descriptors, resident bytes)."""
    resident = int((Path("/proc") / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(list((Path("/proc") / str(pid) / "fd").iterdir())), resident


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
    for callers, threads in ((1, 8), (2, 6), (5, 2), (24, 1)):
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
    monkeypatch.setattr(store_module, "check_file", lambda name: name)
    [found] = store.load_many([ref], BUDGET, FACTORS)
    assert isinstance(found, MediaError) and found.code == "missing"
    path.mkdir()
    [found] = store.load_many([ref], BUDGET, FACTORS)
    assert isinstance(found, MediaError) and (found.code, found.reason) == ("damaged", "it can't be read to its end: Is a directory")


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

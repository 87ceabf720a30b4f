"""Decoding children: what hangs, crashes or takes all memory is a fault of the file; what can't start is none."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from media_clips import clip, video
from PIL import Image

from evr1_core.errors import Evr1Error, MediaError
from evr1_core.media import guard as guard_module
from evr1_core.media.guard import DecodeGuard
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors

BUDGET, FACTORS = Budget(), PatchFactors(32, 2)


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


def test_a_broken_library_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "av").mkdir()
    (tmp_path / "av" / "__init__.py").write_text("raise ImportError('libavcodec.so.62: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(Evr1Error, match=r"can't be started: .*ImportError: libavcodec\.so\.62: cannot open shared object file"):
        MediaStore(tmp_path, "decode-only").load(video("bframes.mp4"), BUDGET, FACTORS)


def test_an_error_that_nobody_foresaw_names_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store, odd = guarded(tmp_path, "raise IndexError('list index out of range')", 30.0)
    for _ in range(2):
        with pytest.raises(MediaError, match=r"hang\.mp4: damaged: reading it failed with IndexError: list index out of range"):
            store.load(odd, BUDGET, FACTORS)
    assert "Traceback" in capfd.readouterr().err
    assert len(store.load(video("bframes.mp4"), BUDGET, FACTORS).frames) == 8 and store._guard is not None and store._guard.started == 1


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
def test_images_and_headers_are_read_in_the_child_too(tmp_path: Path, name: str) -> None:
    store, _ = guarded(tmp_path, "time.sleep(600)", 1.0)
    Image.new("RGB", (64, 48)).save(tmp_path / "hang.png")
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

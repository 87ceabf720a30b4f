"""The frame cache: what is written is what is read, and anything else is a miss."""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from evr1_core.media import cache as cache_module
from evr1_core.media import entry as entry_module
from evr1_core.media.cache import ContentHashes, FrameCache, make_key
from evr1_core.types import Clip, PatchFactors, VideoBudget


def a_clip(seed: int = 0, frames: int = 6) -> Clip:
    noise = np.frombuffer(random.Random(seed).randbytes(frames * 3 * 32 * 64), np.uint8)
    return Clip(
        frames=noise.reshape(frames, 3, 32, 64),
        times=tuple(index / 3 for index in range(frames)), indices=tuple(range(0, 10 * frames, 10)), source_fps=30000 / 1001,
        source_frames=61, duration=2.035, span=2.035, rotation=90, decoder="test-1", content_hash="c" * 64,
        key=hashlib.sha256(str(seed).encode()).hexdigest(),
    )  # fmt: skip


def same(one: Clip | None, other: Clip) -> bool:
    if one is None:
        return False
    names = [name for name in Clip.__slots__ if name != "frames"]
    return all(getattr(one, name) == getattr(other, name) for name in names) and np.array_equal(one.frames, other.frames)


def test_round_trip(tmp_path: Path) -> None:
    cache, clip = FrameCache(tmp_path), a_clip()
    assert cache.get(clip.key) is None
    size = cache.put(clip)
    path = cache.path(clip.key)
    assert size == path.stat().st_size and path.parent.name == clip.key[:2] and list(cache.entries()) == [path]
    assert same(cache.get(clip.key), clip) and same(FrameCache(tmp_path).get(clip.key), clip)
    with safe_open(path, "np") as file:
        np.testing.assert_array_equal(file.get_tensor("frames"), clip.frames)


def test_writing_into_a_clip_leaves_the_entry_alone(tmp_path: Path) -> None:
    cache, clip = FrameCache(tmp_path), a_clip()
    cache.put(clip)
    mine = cache.get(clip.key)
    assert mine is not None
    mine.frames[:] = 0
    assert same(cache.get(clip.key), clip)


def spoil(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "cut":
        content = content[:-100]
    elif how == "longer":
        content += b"x"
    elif how == "bit":
        content[-1] ^= 1
    elif how == "header":
        content[20:40] = b"\xff" * 20
    elif how == "length":
        content[:8] = (2**60).to_bytes(8, "little")
    elif how == "empty":
        content = bytearray()
    elif how == "zeros":
        content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    elif how == "format":
        content = content.replace(b'"format": "2"', b'"format": "1"')
    elif how == "other":
        content = content.replace(a_clip().key.encode(), b"0" * 64)
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut", "longer", "bit", "header", "length", "empty", "zeros", "format", "other"])
def test_a_spoilt_entry_is_a_miss(tmp_path: Path, how: str) -> None:
    clip = a_clip()
    writer = FrameCache(tmp_path)
    writer.put(clip)
    assert same(writer.get(clip.key), clip)
    time.sleep(0.01)
    spoil(writer.path(clip.key), how)
    assert FrameCache(tmp_path).get(clip.key) is None
    assert writer.get(clip.key) is None, "a file that changed is looked at anew"
    writer.put(clip)
    assert same(writer.get(clip.key), clip)


def test_a_full_disk_costs_the_entry_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real, writes = os.write, itertools.count()

    def full(descriptor: int, data: Any) -> int:
        if next(writes) % 3 == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:1000])  # a write may take less than it was given

    monkeypatch.setattr(entry_module.os, "write", full)
    cache = FrameCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.put(a_clip(0)) == 0 and cache.put(a_clip(1)) == 0
    assert len(caplog.records) == 1 and "the disk is full" in caplog.text and str(tmp_path) in caplog.text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    monkeypatch.undo()
    assert cache.get(a_clip().key) is None and cache.put(a_clip()) > 0


def test_a_folder_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert FrameCache(tmp_path / "file" / "below").put(a_clip()) == 0


def _build(directory: str, seed: int, rounds: int) -> None:
    cache, order = FrameCache(Path(directory), threads=1), random.Random(seed)
    for _ in range(rounds):
        for number in order.sample(range(10), 10):
            cache.put(a_clip(number, 40))


def test_eight_writers_of_ten_entries_and_kill_9(tmp_path: Path) -> None:
    """An entry appears complete or not at all, whoever writes it and whoever dies over it."""
    context, order = multiprocessing.get_context("fork"), random.Random(0)
    wanted = [a_clip(number, 40) for number in range(10)]

    def start(seed: int, rounds: int) -> BaseProcess:
        process = context.Process(target=_build, args=(str(tmp_path), seed, rounds))
        process.start()
        return process

    writers = [start(seed, 10_000) for seed in range(8)]
    killed, seen, until = 0, 0, time.monotonic() + 2.5
    while time.monotonic() < until:
        victim = order.randrange(8)
        os.kill(writers[victim].pid or 0, signal.SIGKILL)
        writers[victim].join()
        writers[victim] = start(100 + killed, 10_000)
        killed += 1
        for clip in wanted:
            found = FrameCache(tmp_path).get(clip.key)
            assert found is None or same(found, clip)
            seen += found is not None
    for writer in writers:
        writer.kill()
        writer.join()
    start(0, 1).join()
    assert killed > 5 and seen > 10 and len(list(FrameCache(tmp_path).entries())) == 10
    assert all(same(FrameCache(tmp_path).get(clip.key), clip) for clip in wanted)


def test_a_writer_that_is_killed_leaves_no_entry(tmp_path: Path) -> None:
    clip = a_clip()
    pid = os.fork()
    if pid == 0:
        entry_module.os.replace = lambda *_: os._exit(9)  # type: ignore[assignment]
        FrameCache(tmp_path).put(clip)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert FrameCache(tmp_path).get(clip.key) is None and list(FrameCache(tmp_path).entries()) == []


def test_an_entry_replaced_while_it_is_mapped(tmp_path: Path) -> None:
    cache, clip = FrameCache(tmp_path), a_clip()
    cache.put(clip)
    mapped = cache.get(clip.key)
    other = replace(clip, frames=255 - clip.frames)
    FrameCache(tmp_path).put(other)
    assert same(mapped, clip) and same(cache.get(clip.key), other)
    cache.path(clip.key).unlink()
    assert same(mapped, clip) and cache.get(clip.key) is None


def test_the_checksum_is_looked_at_once_per_file_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looked = cache_module.intact, itertools.count()
    monkeypatch.setattr(cache_module, "intact", lambda *given: (next(looked), real(*given))[1])
    cache, clip = FrameCache(tmp_path), a_clip()
    cache.put(clip)
    assert all(same(cache.get(clip.key), clip) for _ in range(3)) and next(looked) == 1
    cache.put(clip)
    assert all(same(cache.get(clip.key), clip) for _ in range(3)) and next(looked) == 3


def test_a_read_counts_as_use_once_a_day(tmp_path: Path) -> None:
    cache, clip = FrameCache(tmp_path), a_clip()
    cache.put(clip)
    path = cache.path(clip.key)
    for age, renewed in ((3_600, False), (90_000, True)):
        before = time.time() - age
        os.utime(path, (before, before))
        assert same(cache.get(clip.key), clip)
        assert (path.stat().st_mtime > before + 1) == renewed


def test_every_part_of_the_key_counts() -> None:
    parts: dict[str, Any] = {
        "kind": "video", "start": None, "end": None, "limits": VideoBudget(), "factors": PatchFactors(32), "sampler": "1", "decoder": "a-1",
        "codec": "raw",
    }  # fmt: skip
    variants = [
        {}, {"start": 0.0}, {"end": 1.0}, {"limits": replace(VideoBudget(), fps=1.0)},
        {"limits": replace(VideoBudget(), max_pixels=262_145)},
        {"limits": replace(VideoBudget(), total_pixels=10**7)}, {"factors": PatchFactors(28)}, {"factors": PatchFactors(32, 1)},
        {"sampler": "2"}, {"decoder": "a-2"}, {"codec": "jpeg"},
    ]  # fmt: skip
    keys = {make_key("content", **{**parts, **variant}) for variant in variants} | {make_key("other", **parts)}
    assert len(keys) == len(variants) + 1 and make_key("content", **parts) == make_key("content", **parts)


def test_a_file_is_hashed_once_per_state(tmp_path: Path) -> None:
    file = tmp_path / "x.mp4"
    file.write_bytes(b"one")
    hashes = ContentHashes(tmp_path / "hashes")
    assert {hashes.of(str(file))[0] for _ in range(3)} == {hashlib.sha256(b"one").hexdigest()} and hashes.computed == 1
    again = ContentHashes(tmp_path / "hashes")
    again.of(str(file))
    assert again.computed == 0, "another process knows it already"
    time.sleep(0.02)
    file.write_bytes(b"two")
    assert again.of(str(file))[0] == hashlib.sha256(b"two").hexdigest() and again.computed == 1
    for memo in (tmp_path / "hashes").rglob("*"):
        if memo.is_file():
            memo.write_text("torn")
    assert ContentHashes(tmp_path / "hashes").of(str(file))[0] == hashlib.sha256(b"two").hexdigest()

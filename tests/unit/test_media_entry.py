"""One entry: what its writer guarantees, and what a reader makes of anything else."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from evr1_core.media.entry import Codec, Entry, EntryWriter, entry_path, frames_of, intact, map_data, read_entry

KEY = "ab" + "0" * 62


def pictures(count: int = 5, height: int = 32, width: int = 48) -> np.ndarray:
    """Smooth pictures with some grain, [count, 3, height, width]."""
    y, x = np.mgrid[:height, :width] / 8
    waves = np.stack([np.stack([np.sin(y + channel + shift) * np.cos(x - shift) for channel in range(3)]) for shift in range(count)])
    grain = np.random.default_rng(0).normal(0, 2, waves.shape)
    return (127 + 90 * waves + grain).clip(0, 255).astype(np.uint8)


def meta(times: list[float], **more: Any) -> dict[str, Any]:
    return {
        "times": tuple(times), "indices": tuple(range(len(times))), "source_fps": 30000 / 1001, "source_frames": 61, "duration": 2.035,
        "span": 2.035, "rotation": 90, "decoder": "test-1", "content_hash": "c" * 64, "key": KEY, "kind": "video", "missing": 0, **more,
    }  # fmt: skip


def write(directory: Path, frames: np.ndarray, codec: Codec = "raw", planned: int | None = None, **more: Any) -> Path:
    count, channels, height, width = frames.shape
    with EntryWriter(directory, KEY, (planned or count, channels, height, width), codec) as writer:
        for frame in frames:
            writer.add(frame)
        size = writer.commit(meta([place / 2 for place in range(count)], **more))
    assert size == writer.path.stat().st_size
    return writer.path


def read(path: Path) -> tuple[Entry, np.ndarray]:
    with open(path, "rb") as file:
        entry = read_entry(file)
        data = map_data(file, entry)
    if not intact(entry, data):
        raise ValueError("the checksum does not agree")
    return entry, frames_of(entry, data, threads=2)


@pytest.mark.parametrize("planned", [5, 400])
def test_raw_frames_come_back_as_they_went(tmp_path: Path, planned: int) -> None:
    frames = pictures()
    path = write(tmp_path, frames, planned=planned, missing=planned - 5)
    entry, back = read(path)
    np.testing.assert_array_equal(back, frames)
    assert entry.clip == meta([0.0, 0.5, 1.0, 1.5, 2.0], missing=planned - 5) and entry.shape == frames.shape
    assert path == entry_path(tmp_path, KEY) and entry.offset % 64 == 0 and back.flags.writeable


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_the_library_reads_it_too(tmp_path: Path, codec: Codec) -> None:
    frames = pictures(height=33, width=47)
    path = write(tmp_path, frames, codec)
    for framework in ("np", "pt"):
        with safe_open(path, framework) as file:
            tensors = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            assert json.loads(file.metadata()["clip"])["times"] == [0.0, 0.5, 1.0, 1.5, 2.0]
        if codec == "raw":
            np.testing.assert_array_equal(tensors["frames"], frames)
        else:
            offsets = tensors["offsets"]
            assert len(offsets) == 6 and bytes(tensors["data"][offsets[4] :][:2]) == b"\xff\xd8"


def test_compact_frames_are_close_and_always_the_same(tmp_path: Path) -> None:
    frames = pictures(9, 64, 96)
    path = write(tmp_path, frames, "jpeg", planned=12)
    (entry, one), (_, other) = read(path), read(path)
    error = np.mean((one.astype(float) - frames) ** 2)
    assert 10 * np.log10(255**2 / error) > 40 and entry.size < frames.size / 3
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("codec", ["raw", "jpeg"])
def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path, codec: Codec) -> None:
    path = write(tmp_path, pictures(2, 8, 8), codec)
    content = path.read_bytes()
    order = np.random.default_rng(0)
    for place in [*range(0, 600, 7), *order.integers(0, len(content), 150), len(content) - 1]:
        spoilt = bytearray(content)
        spoilt[place] ^= 1 << int(order.integers(8))
        path.write_bytes(spoilt)
        with pytest.raises(ValueError):
            read(path)
    for length in [0, 1, 8, 100, 4_000, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError):
            read(path)
        path.write_bytes(content[:length] + bytes(len(content) - length))
        if any(content[length:]):
            with pytest.raises(ValueError):
                read(path)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**63 - 1)), min_size=1, max_size=20))
def test_any_clock_fits_and_comes_back(tmp_path_factory: pytest.TempPathFactory, clock: list[tuple[float, int]]) -> None:
    times, indices = zip(*clock, strict=True)
    directory = tmp_path_factory.mktemp("entry")
    with EntryWriter(directory, KEY, (len(times), 3, 1, 1)) as writer:
        for _ in times:
            writer.add(np.zeros((3, 1, 1), np.uint8))
        writer.commit(meta(list(times), indices=indices))
    entry, _ = read(writer.path)
    assert entry.clip["times"] == times and entry.clip["indices"] == indices


def test_leaving_without_commit_leaves_nothing(tmp_path: Path) -> None:
    frames = pictures()
    with EntryWriter(tmp_path, KEY, (5, 3, 32, 48)) as writer:
        writer.add(frames[0])
        [unfinished] = list(tmp_path.rglob(".writing-*.tmp"))
        assert str(os.getpid()) in unfinished.name and os.uname().nodename[:64] in unfinished.name
    with pytest.raises(RuntimeError), EntryWriter(tmp_path, KEY, (5, 3, 32, 48)) as writer:
        raise RuntimeError
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    frame = pictures()[0]
    with pytest.raises(ValueError, match="holds"):
        EntryWriter(tmp_path, KEY, (5, 1, 32, 48))
    with EntryWriter(tmp_path, KEY, (1, 3, 32, 48)) as writer:
        for wrong in (frame.astype(np.int16), frame[:, :8]):
            with pytest.raises(ValueError, match="does not fit"):
                writer.add(wrong)
        with pytest.raises(ValueError, match="0 frames"):
            writer.commit(meta([]))
        writer.add(frame)
        with pytest.raises(ValueError, match="frame 2"):
            writer.add(frame)
        with pytest.raises(ValueError, match="1 frames were added, the clock has 2"):
            writer.commit(meta([0.0, 1.0]))
        with pytest.raises(ValueError):
            writer.commit(meta([0.0], key="cd"))
    assert not writer.path.exists()


def test_the_umask_decides_who_reads(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert write(tmp_path, pictures()).stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The system refuses in the middle of a write: the error comes through, nothing stays."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            write(tmp_path, pictures())
        except OSError as error:
            os._exit(0 if error.errno == errno.EFBIG else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        with pytest.raises(OSError) as caught:
            write(disk, pictures(20))
        assert caught.value.errno == errno.ENOSPC and [path for path in disk.rglob("*") if path.is_file()] == []
        write(disk, pictures(2))
    finally:
        subprocess.run(["umount", disk], check=True)

"""A video as a folder of pictures: its clock, its frames, its cache entry, and what can be wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from evr1_core.data.media_fields import FieldFault, read_media
from evr1_core.data.rows import read_samples
from evr1_core.errors import MediaError, RequestError
from evr1_core.media.folder import pictures
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors, VideoBudget

FACTORS = PatchFactors(16)
BUDGET = Budget(VideoBudget(fps=1.0, max_frames=8, min_pixels=256))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """12 grey pictures, each as bright as its number, without leading zeros in their names."""
    made = tmp_path / "video"
    made.mkdir()
    for number in range(1, 13):
        Image.new("RGB", (64, 48), (number * 10,) * 3).save(made / f"{number}.png")
    (made / "notes.txt").write_text("no picture")
    (made / ".hidden.png").write_bytes(b"")
    return made


def load(store: MediaStore, folder: Path, start: float | None = None, end: float | None = None, budget: Budget = BUDGET) -> list[int]:
    clip = store.load(MediaRef(str(folder), "video", start, end, 3.0), budget, FACTORS)
    return [round(float(frame.mean()) / 10) for frame in clip.frames]


@pytest.fixture(params=[True, False], ids=["process", "here"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MediaStore:
    return MediaStore(tmp_path / "cache", isolate=request.param)


def test_frames_and_clock(store: MediaStore, folder: Path) -> None:
    ref = MediaRef(str(folder), "video", fps=3.0)
    clip = store.load(ref, BUDGET, FACTORS)
    assert clip.frames.shape == (4, 3, 48, 64) and load(store, folder) == [1, 5, 8, 12]
    assert clip.times == pytest.approx((0, 4 / 3, 7 / 3, 11 / 3)) and clip.indices == (0, 4, 7, 11)
    assert (clip.source_fps, clip.source_frames, clip.duration, clip.kind) == (3.0, 12, 4.0, "video")
    assert clip.sampled_fps == 1.0 and "pyav" not in clip.decoder
    plan = store.plan(ref, BUDGET, FACTORS)
    assert (plan.frames, plan.times, plan.height, plan.width) == (4, clip.times, 48, 64)
    store.close()


def test_a_part(store: MediaStore, folder: Path) -> None:
    everything = Budget(VideoBudget(fps=3.0, min_pixels=256))
    assert load(store, folder, 1.0, 2.9, everything) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(MediaError, match="empty: the part starts at 4 s"):
        load(store, folder, 4.0)
    store.close()


def test_the_cache_knows_content_and_rate(store: MediaStore, folder: Path) -> None:
    load(store, folder)
    load(store, folder)
    assert (store.counters.hits, store.counters.decoded) == (1, 1)
    ref = MediaRef(str(folder), "video", fps=3.0)
    key, moved = store.key(ref, BUDGET, FACTORS), folder.rename(folder.parent / "elsewhere")
    assert store.key(MediaRef(str(moved), "video", fps=3.0), BUDGET, FACTORS) == key
    assert store.key(MediaRef(str(moved), "video", fps=2.0), BUDGET, FACTORS) != key
    Image.new("RGB", (64, 48), (250, 250, 250)).save(moved / "5.png")
    assert load(store, moved) == [1, 25, 8, 12]
    (moved / "12.png").unlink()
    assert store.plan(MediaRef(str(moved), "video", fps=3.0), BUDGET, FACTORS).source_frames == 11
    store.close()


def test_what_can_be_wrong(store: MediaStore, folder: Path, tmp_path: Path) -> None:
    Image.new("RGB", (32, 48)).save(folder / "5.png")
    with pytest.raises(MediaError, match=r"damaged: 1 of 4 chosen pictures can't be used; 5\.png: 32x48 pixels, the first has 64x48"):
        load(store, folder)
    (folder / "5.png").write_bytes((folder / "6.png").read_bytes()[:60])
    with pytest.raises(MediaError, match=r"damaged: 1 of 4 chosen pictures can't be used; 5\.png"):
        load(store, folder)
    tolerant = MediaStore(tmp_path / "cache", isolate=False, tolerate=0.25)
    clip = tolerant.load(MediaRef(str(folder), "video", fps=3.0), BUDGET, FACTORS)
    assert clip.indices == (0, 7, 11) and clip.missing == 1
    (tmp_path / "empty").mkdir()
    file = folder / "1.png"
    for path, fps, message in (
        (tmp_path / "empty", 3.0, "empty: the folder holds no pictures"),
        (tmp_path / "none", 3.0, "missing: no such folder"),
        (file, 3.0, "unsupported: it has a rate"),
        (folder, None, "missing: this is not a file"),
    ):
        with pytest.raises(MediaError, match=message):
            store.load(MediaRef(str(path), "video", fps=fps), BUDGET, FACTORS)
    for ref in (MediaRef(str(folder), "video", fps=0.0), MediaRef(str(file), "image", fps=3.0)):
        with pytest.raises(RequestError, match="the rate a number above 0"):
            store.load(ref, BUDGET, FACTORS)
    store.close()


def test_a_deadline_is_kept(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="timeout: the deadline passed after 0 of 4 pictures"):
        load(MediaStore(tmp_path / "cache", isolate=False, deadline=-1.0), folder)


def test_pictures_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    for name in ("frame_10.jpg", "frame_9.JPG", "frame_2.jpeg", "frame_2b.png", "a.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert pictures(str(tmp_path)) == ["frame_2.jpeg", "frame_2b.png", "frame_9.JPG", "frame_10.jpg"]


def test_rows_name_folders(folder: Path, tmp_path: Path) -> None:
    row = '{"problem": "?", "answer": "A", "options": ["x", "y"], "problem_type": "multiple choice", "videos": [%s]}\n'
    data = tmp_path / "data.jsonl"
    data.write_text(row % '{"path": "video", "fps": 3, "start": 1}')
    [sample] = read_samples(data).samples
    assert sample.media == (MediaRef(str(folder), "video", 1.0, None, 3.0),)
    for medium, message in (('"video"', 'give {"path": ..., "fps": ...}'), ('{"path": "gone", "fps": 3}', "no such folder")):
        data.write_text(row % medium)
        with pytest.raises(RequestError, match=message):
            read_samples(data)
    with pytest.raises(FieldFault, match="only of a video"):
        read_media({"images": [{"path": "video", "fps": 3}]}, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_without_permission(folder: Path, store: MediaStore) -> None:
    folder.chmod(0)
    try:
        with pytest.raises(MediaError, match="missing: Permission denied"):
            load(store, folder)
    finally:
        folder.chmod(0o755)
        store.close()

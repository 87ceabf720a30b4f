"""Decoding a video against qwen-vl-utils with its decord reader, and decoding with several worker processes.

    python bench/decode.py [--seconds 60] [--rounds 3] [--bitrate N] [--workers 1,2] [--folder DIR]
                           [--json out.json]

The clip is made here: 1280x720 H.264 at 30 frames per second with the defaults of libx264 (crf 23, preset medium, key frames 250 apart,
B-frames), or at --bitrate; a view that moves over clouds of coloured noise, with an object in front and grain. 120 frames are taken
and resized to 672x384.

One file: the same frames, from the file to resized pictures, in alternation, medians. evr1 gives uint8; qwen-vl-utils gives float32
(that is its interface). evr1 decodes in its child process and sends the frames through the pipe (decode-only); a warm child, as in a
run. For the comparison: pip install qwen-vl-utils==0.0.14 decord. Without it that column is left out.

Many files: N copies of the work in N decoding processes with one decoder thread each, clips per second, over N times what one process
with one thread does alone in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

from evr1_core.media.guard import DecodeGuard
from evr1_core.media.store import MediaStore
from evr1_core.media.worker import Request
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors, VideoBudget

WIDTH, HEIGHT, FPS, KEY = 1280, 720, 30, 250
BUDGET, FACTORS = Budget(VideoBudget(max_frames=120)), PatchFactors(32)


def clouds(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: noise of many sizes, the large ones strongest, as in photographs."""
    planes = []
    for _ in range(3):
        plane = np.zeros((height, width), np.float32)
        for size in (4, 8, 16, 64, 256):
            coarse = random.standard_normal((height // size + 3, width // size + 3), np.float32)
            plane += np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)) * size**0.5
        planes.append((plane - plane.min()) / np.ptp(plane) * 255)
    return np.stack(planes, -1).astype(np.uint8)


def write_clip(path: Path, seconds: int, bitrate: int) -> None:
    random = np.random.default_rng(0)
    world, ball = clouds(random, HEIGHT + 400, WIDTH + 800), clouds(random, 240, 240)
    grain = random.normal(0, 3, (HEIGHT + 64, WIDTH + 64, 1)).astype(np.int16)
    temporary = path.with_suffix(".tmp.mp4")
    with av.open(temporary, "w") as out:
        options = {"g": str(KEY), "keyint_min": str(KEY), "sc_threshold": "0"} | ({} if bitrate else {"crf": "23"})
        stream: Any = out.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = WIDTH, HEIGHT, "yuv420p", bitrate
        for index in range(seconds * FPS):
            x, y = int(400 + 390 * np.sin(index / 97)), int(200 + 190 * np.cos(index / 131))
            view = world[y : y + HEIGHT, x : x + WIDTH].astype(np.int16)
            x, y = int((WIDTH - 240) * (0.5 + 0.5 * np.sin(index / 41))), int((HEIGHT - 240) * (0.5 + 0.5 * np.cos(index / 29)))
            view[y : y + 240, x : x + 240] = ball
            y, x = random.integers(0, 64, 2)
            view += grain[y : y + HEIGHT, x : x + WIDTH]
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.clip(view, 0, 255).astype(np.uint8), "rgb24")))
        out.mux(stream.encode())
    temporary.replace(path)


def reference() -> Callable[[str], tuple[np.ndarray, list[int]]] | None:
    """(float32 [T, 3, H, W], indices) as qwen-vl-utils gives them, or None where it isn't installed."""
    os.environ["FORCE_QWENVL_VIDEO_READER"] = "decord"
    try:
        import decord  # noqa: F401  # pyright: ignore[reportMissingImports]
        from qwen_vl_utils import fetch_video  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        print(f"no comparison: {error}; pip install qwen-vl-utils==0.0.14 decord")
        return None

    def load(path: str) -> tuple[np.ndarray, list[int]]:
        asked = {
            "video": path,
            "fps": 2.0,
            "min_frames": 4,
            "max_frames": 120,
            "max_pixels": BUDGET.video.max_pixels,
            "total_pixels": 10**12,
        }
        (frames, metadata), _ = fetch_video(asked, image_patch_size=16, return_video_sample_fps=True, return_video_metadata=True)
        return frames.numpy(), [int(index) for index in metadata["frames_indices"]]

    return load


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = action()
    return time.perf_counter() - began, result


def one_file(path: str, rounds: int) -> dict[str, Any]:
    """Seconds of each way, and how far the frames are apart."""
    store, theirs = MediaStore(mode="decode-only"), reference()
    store.load(MediaRef(path, "video", 0.0, 0.5), BUDGET, FACTORS)  # the child starts
    ours: list[float] = []
    other: list[float] = []
    result: dict[str, Any] = {}
    for _ in range(rounds):
        seconds, clip = timed(lambda: store.load(MediaRef(path, "video"), BUDGET, FACTORS))
        ours.append(seconds)
        if theirs is not None:
            seconds, (frames, indices) = timed(lambda: theirs(path))
            other.append(seconds)
            result |= compare(clip, frames, indices)
    result["evr1_seconds"] = statistics.median(ours)
    if other:
        result |= {"qwen_vl_utils_seconds": statistics.median(other), "times_faster": statistics.median(other) / statistics.median(ours)}
    return result


def compare(clip: Clip, frames: np.ndarray, indices: list[int]) -> dict[str, Any]:
    difference = np.abs(clip.frames.astype(np.float32) - frames) if clip.frames.shape == frames.shape else None
    return {
        "same_indices": list(clip.indices) == indices, "shape": list(clip.frames.shape), "other_shape": list(frames.shape),
        "mean_difference": None if difference is None else float(difference.mean()),
        "max_difference": None if difference is None else float(difference.max()),
    }  # fmt: skip


def many_files(path: str, workers: list[int], rounds: int) -> list[dict[str, Any]]:
    """Clips per second with N processes of one thread each, in every round beside one process alone."""
    guard = DecodeGuard(600.0)
    request = replace(Request(path, "video", None, None, BUDGET, FACTORS), threads=1)

    def rate(count: int) -> float:
        with ThreadPoolExecutor(count) as pool:
            return count / timed(lambda: list(pool.map(lambda _: guard.ask(request).end, range(count))))[0]

    rate(max(workers))  # the children start
    rows = []
    for count in workers:
        pairs = [(rate(1), rate(count)) for _ in range(rounds)]
        alone, together = (statistics.median(side) for side in zip(*pairs, strict=True))
        share = statistics.median(many / one for one, many in pairs) / count
        rows.append({"processes": count, "one_alone_per_second": alone, "clips_per_second": together, "share_of_ideal": share})
    guard.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="length of the clip")
    parser.add_argument("--bitrate", type=int, default=0, help="bits per second; else crf 23")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default=",".join(str(n) for n in range(1, len(os.sched_getaffinity(0)) + 1)))
    parser.add_argument("--folder", type=Path, help="where the clip is kept; else it is made anew each time")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        clip = folder / f"decode-{asked.seconds}s-{asked.bitrate}.mp4"
        if not clip.exists():
            write_clip(clip, asked.seconds, asked.bitrate)
        load = os.getloadavg()[0]
        one = one_file(str(clip), asked.rounds)
        many = many_files(str(clip), [int(count) for count in asked.workers.split(",")], asked.rounds)
        size = clip.stat().st_size
    report = {
        "cores": len(os.sched_getaffinity(0)), "load": load, "seconds": asked.seconds, "bytes": size, "rounds": asked.rounds, **one,
        "workers": many,
    }  # fmt: skip
    print(f"{asked.seconds} s of video, {size / 2**20:.1f} MiB; {report['cores']} cores, load {load:.1f} before the start")
    for name, value in one.items():
        print(f"  {name:24}{value:.3f}" if isinstance(value, float) else f"  {name:24}{value}")
    print(f"  {'processes':>9}{'clips/s':>10}{'one alone':>11}{'share of N':>12}")
    for row in many:
        print(f"  {row['processes']:9}{row['clips_per_second']:10.3f}{row['one_alone_per_second']:11.3f}{row['share_of_ideal']:12.2f}")
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()

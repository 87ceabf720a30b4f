"""The frame cache against the obvious ways to keep frames: time of a warm load, bytes, loss.

    python bench/cache.py [--video FILE] [--frames 64] [--side 448] [--rounds 15] [--json out.json]

Compared, on the same frames [T, 3, side, side]: a cache entry (raw, compact), a tensor file with the float32 frames (`torch.save`), a
plain file with as many bytes as the raw entry. A load ends when every byte was looked at: each result is summed, 8 bytes at a time.
The ways alternate, the page cache is warm, the figures are medians. Without --video one is made: coloured noise with the spectrum of
photographs (amplitude 1/f^1.4: JPEG takes a little more for it than for the photographs of docs/cache.md) and edges, moving, with
grain, encoded at twice the side as a camera's file would be.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

from evr1_core.media.cache import FrameCache
from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors, VideoBudget


def write_natural(path: Path, frames: int, side: int) -> None:
    """A video of `frames` [side, side] pictures with the spectrum of photographs, the view moving; H.264, 4:2:0, crf 20."""
    random, size = np.random.default_rng(0), side + 2 * frames
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None])
    frequency[0, 0] = 1
    base, *tints = (np.fft.irfft2(np.fft.rfft2(random.normal(size=(size, size))) / frequency**1.4, (size, size)) for _ in range(4))
    y, x = np.mgrid[:size, :size]
    for _ in range(12):
        inside = np.hypot(y - random.integers(size), x - random.integers(size)) < random.integers(20, size // 4)
        base += base.std() * random.normal(0, 0.4) * inside
    planes = np.stack([base + 0.2 * tint for tint in tints])
    picture = 127 + 45 * (planes - planes.mean()) / planes.std()
    with av.open(path, "w") as container:
        stream: Any = container.add_stream("libx264", rate=2, options={"crf": "20", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = side, side, "yuv420p"
        for place in range(frames):
            view = picture[:, 2 * place : 2 * place + side, place : place + side] + random.normal(0, 2, (side, side))
            pixels = np.ascontiguousarray(view.clip(0, 255).astype(np.uint8).transpose(1, 2, 0))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode())


def frames_of(video: Path, frames: int, side: int) -> np.ndarray:
    """uint8 [T, 3, H, W] as a training run gets them."""
    limits = VideoBudget(max_frames=frames, min_frames=frames, max_pixels=side**2)
    store = MediaStore(mode="decode-only", isolate=False)
    return np.array(store.load(MediaRef(str(video), "video"), Budget(video=limits), PatchFactors(32)).frames)


def a_clip(frames: np.ndarray, key: str) -> Clip:
    count = len(frames)
    return Clip(
        frames=frames, times=tuple(place / 2 for place in range(count)), indices=tuple(range(0, 12 * count, 12)), source_fps=24.0,
        source_frames=12 * count, duration=count / 2, rotation=0, decoder="bench", content_hash="0" * 64, key=key, span=count / 2,
    )  # fmt: skip


def touch(data: np.ndarray) -> None:
    """Look at every byte."""
    np.bitwise_xor.reduce(data.reshape(-1)[: data.size // 8 * 8].view(np.uint64))


def ways(directory: Path, frames: np.ndarray) -> tuple[dict[str, Callable[[], np.ndarray]], dict[str, int], float]:
    """(loads by name, bytes on disk by name, PSNR of the compact entry)."""
    raw, compact, one = (FrameCache(directory), FrameCache(directory, "jpeg", 2), FrameCache(directory, "jpeg", 1))
    keys = {"raw": "aa" + "0" * 62, "jpeg": "bb" + "0" * 62}
    sizes = {"entry, raw": raw.put(a_clip(frames, keys["raw"])), "entry, compact": compact.put(a_clip(frames, keys["jpeg"]))}
    tensor, plain = directory / "float32.pt", directory / "plain.bin"
    torch.save(torch.from_numpy(frames).float() / 255, tensor)
    plain.write_bytes(frames.tobytes())
    sizes |= {"torch.save of float32": tensor.stat().st_size, "plain file": plain.stat().st_size}

    def entry(cache: FrameCache, key: str) -> np.ndarray:
        clip = cache.get(key)
        assert clip is not None
        return clip.frames

    error = float(np.mean((entry(compact, keys["jpeg"]).astype(np.float32) - frames) ** 2))
    loads = {
        "entry, raw, verified before": lambda: entry(raw, keys["raw"]),
        "entry, raw, first load (checksum)": lambda: entry(FrameCache(directory), keys["raw"]),
        "entry, compact, 2 threads": lambda: entry(compact, keys["jpeg"]),
        "entry, compact, 1 thread": lambda: entry(one, keys["jpeg"]),
        "torch.load of float32": lambda: torch.load(tensor).numpy().view(np.uint8),
        "plain read of the raw bytes": lambda: np.frombuffer(plain.read_bytes(), np.uint8),
    }
    return loads, sizes, 10 * math.log10(255**2 / error)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--video", type=Path)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--side", type=int, default=448)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        video = given.video or Path(directory) / "natural.mp4"
        if given.video is None:
            write_natural(video, given.frames, 2 * given.side)
        frames = frames_of(video, given.frames, given.side)
        loads, sizes, psnr = ways(Path(directory), frames)
        times: dict[str, list[float]] = {name: [] for name in loads}
        for turn in range(given.rounds + 1):
            for name, load in loads.items():
                began = time.perf_counter()
                touch(load())
                if turn:
                    times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    raw = medians["entry, raw, verified before"]
    print(f"{list(frames.shape)}, {given.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'load':36} {'median ms':>10} {'against the raw entry':>22}")
    for name, median in medians.items():
        print(f"{name:36} {median:10.2f} {median / raw:21.2f}x")
    float32 = sizes["torch.save of float32"]
    print(f"\n{'on disk':36} {'MiB':>10} {'of float32':>22}")
    for name, size in sizes.items():
        print(f"{name:36} {size / 2**20:10.2f} {f'1/{float32 / size:.2f}':>22}")
    print(f"\nPSNR of the compact entry: {psnr:.1f} dB")
    if given.json:
        result: dict[str, Any] = {"shape": frames.shape, "median_ms": medians, "bytes": sizes, "psnr_db": psnr, "load": os.getloadavg()[0]}
        given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

"""Codecs for frames in the cache: bytes, loss and time of each on the same frames.

    python bench/codecs.py FILE... [--frames 16] [--pixels 262144] [--json out.json]

A file is a picture (a window pans over it, one crop per frame) or a video (evenly spaced frames). Each codec gets the frames
[T, 3, H, W] of one file, at the size a model would see them. PSNR is over all RGB bytes of a file, then averaged over files.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors, VideoBudget

FLOAT32 = 4
Encode = Callable[[np.ndarray], list[bytes]]
Decode = Callable[[list[bytes], np.ndarray], None]


def still_codec(form: str, **options: Any) -> tuple[Encode, Decode]:
    """(encode, decode) of frames as separate pictures."""

    def encode(frames: np.ndarray) -> list[bytes]:
        blobs = []
        for frame in frames:
            out = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))).save(out, form, **options)
            blobs.append(out.getvalue())
        return blobs

    def decode(blobs: list[bytes], out: np.ndarray) -> None:
        for place, blob in enumerate(blobs):
            with Image.open(io.BytesIO(blob)) as picture:
                out[place] = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)

    return encode, decode


def video_codec(name: str, layout: str, **options: str) -> tuple[Encode, Decode]:
    """(encode, decode) of frames as one video stream, through PyAV."""
    import av

    def encode(frames: np.ndarray) -> list[bytes]:
        out = io.BytesIO()
        with av.open(out, "w", "matroska") as container:
            stream: Any = container.add_stream(name, rate=2, options=options)
            stream.height, stream.width, stream.pix_fmt = frames.shape[2], frames.shape[3], layout
            stream.thread_count = 1
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame.transpose(1, 2, 0)), "rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        return [out.getvalue()]

    def decode(blobs: list[bytes], out: np.ndarray) -> None:
        with av.open(io.BytesIO(blobs[0]), "r") as container:
            container.streams.video[0].codec_context.thread_count = 1
            for place, frame in enumerate(container.decode(video=0)):
                out[place] = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)

    return encode, decode


CODECS = {
    **{f"jpeg q{quality} {name}": still_codec("JPEG", quality=quality, subsampling=code)
       for quality in (85, 90, 92, 94, 95, 97) for name, code in (("4:4:4", 0), ("4:2:0", 2))},
    **{f"webp q{quality}": still_codec("WEBP", quality=quality, method=2) for quality in (90, 95, 100)},
    "webp lossless": still_codec("WEBP", lossless=True, quality=20, method=0),
    "avif q90 4:4:4": still_codec("AVIF", quality=90, subsampling="4:4:4", speed=8, max_threads=1),
    "png": still_codec("PNG", compress_level=1),
    **{f"x264 intra yuv444 qp{qp}": video_codec("libx264", "yuv444p", preset="veryfast", qp=str(qp), g="1") for qp in (16, 20)},
    **{f"x264 yuv444 qp{qp}": video_codec("libx264", "yuv444p", preset="veryfast", qp=str(qp)) for qp in (16, 20)},
    **{f"x264 rgb qp{qp}": video_codec("libx264rgb", "rgb24", preset="veryfast", qp=str(qp)) for qp in (16, 20)},
    "x264 rgb lossless": video_codec("libx264rgb", "rgb24", preset="ultrafast", qp="0"),
}  # fmt: skip


def frames_from(path: Path, count: int, pixels: int) -> np.ndarray:
    """uint8 [count, 3, H, W] of a picture or a video."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".tif"):
        budget = Budget(video=VideoBudget(max_frames=count, min_frames=count, max_pixels=pixels))
        return np.array(MediaStore(mode="decode-only", isolate=False).load(MediaRef(str(path), "video"), budget, PatchFactors(32)).frames)
    with Image.open(path) as picture:
        picture = picture.convert("RGB")
    # The window is 4/5 of the picture, and no picture is enlarged.
    scale = min(1.0, math.sqrt(pixels / (picture.width * picture.height * 0.64)))
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BICUBIC)
    whole = np.asarray(picture)
    height, width = int(whole.shape[0] * 0.8) // 32 * 32, int(whole.shape[1] * 0.8) // 32 * 32
    steps = np.linspace(0, 1, count)
    tops, lefts = (steps * (whole.shape[0] - height)).astype(int), (steps * (whole.shape[1] - width)).astype(int)
    crops = [whole[top : top + height, left : left + width] for top, left in zip(tops, lefts, strict=True)]
    return np.ascontiguousarray(np.stack(crops).transpose(0, 3, 1, 2))


def measure(frames: np.ndarray, encode: Callable[..., list[bytes]], decode: Callable[..., None]) -> dict[str, float]:
    began = time.perf_counter()
    blobs = encode(frames)
    between = time.perf_counter()
    back = np.empty_like(frames)
    decode(blobs, back)
    ended = time.perf_counter()
    error = float(np.mean((frames.astype(np.float32) - back) ** 2))
    return {
        "share_of_float32": sum(map(len, blobs)) / (frames.size * FLOAT32),
        "psnr_db": 10 * math.log10(255**2 / error) if error else math.inf,
        "encode_ms_per_frame": (between - began) / len(frames) * 1e3,
        "decode_ms_per_frame": (ended - between) / len(frames) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--frames", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=262_144)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clips = {path.name: frames_from(path, given.frames, given.pixels) for path in given.files}
    for name, frames in clips.items():
        print(f"{name}: {list(frames.shape)}")
    table: dict[str, dict[str, dict[str, float]]] = {}
    print(f"\n{'codec':24} {'of float32':>12} {'worst':>7} {'PSNR dB':>8} {'worst':>6} {'enc ms':>7} {'dec ms':>7}   per frame")
    for name, (encode, decode) in CODECS.items():
        rows = table[name] = {clip: measure(frames, encode, decode) for clip, frames in clips.items()}
        mean = {key: statistics.mean(row[key] for row in rows.values()) for key in next(iter(rows.values()))}
        share, worst = mean["share_of_float32"], max(row["share_of_float32"] for row in rows.values())
        print(
            f"{name:24} {f'1/{1 / share:.1f}':>12} {f'1/{1 / worst:.1f}':>7} {mean['psnr_db']:8.1f} "
            f"{min(row['psnr_db'] for row in rows.values()):6.1f} {mean['encode_ms_per_frame']:7.2f} {mean['decode_ms_per_frame']:7.2f}"
        )
    if given.json:
        given.json.write_text(
            json.dumps({"clips": {name: list(frames.shape) for name, frames in clips.items()}, "codecs": table}, indent=1)
        )


if __name__ == "__main__":
    main()

"""Memory of a decoding process that fills the cache from a long video.

    python bench/memory.py [--hours 1] [--height 1080] [--frames 128] [--codec raw] [--json out.json]

The video is made by repeating the packets of ten seconds (stream copy), so it is as large and as long as a real one and takes a minute
to make. Memory is the high-water mark of the resident set (VmHWM) of the decoding process, once the entry is written.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from evr1_core.media.store import MediaStore
from evr1_core.types import Budget, MediaRef, PatchFactors, VideoBudget

RATE = 25
SECONDS = 10
"""Of the part that is repeated; one key frame every two seconds."""


def write_part(path: Path, height: int) -> None:
    """Ten seconds of a moving view over a textured picture."""
    width, random = height * 16 // 9 // 2 * 2, np.random.default_rng(0)
    coarse = random.integers(0, 256, (height // 8 + 40, width // 8 + 80, 3), dtype=np.uint8)
    picture = coarse.repeat(8, 0).repeat(8, 1)
    options = {"preset": "veryfast", "crf": "23", "g": str(2 * RATE), "bf": "0"}
    with av.open(path, "w") as container:
        stream: Any = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for place in range(RATE * SECONDS):
            view = np.ascontiguousarray(picture[place : place + height, 2 * place : 2 * place + width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, "rgb24")))
        container.mux(stream.encode())


def repeat(part: Path, path: Path, times: int) -> None:
    """A file with the packets of `part`, `times` times."""
    with av.open(part, "r") as source, av.open(path, "w") as container:
        stream: Any = source.streams.video[0]
        out: Any = container.add_stream_from_template(stream)
        packets = [(bytes(packet), packet.pts, packet.is_keyframe) for packet in source.demux(stream) if packet.size]
        # In ticks of the source, which the writer translates.
        step = round(Fraction(1, RATE) / stream.time_base)
        for turn in range(times):
            for data, moment, key in packets:
                packet = av.Packet(data)
                packet.time_base, packet.stream, packet.is_keyframe = stream.time_base, out, key
                packet.pts = packet.dts = moment + turn * len(packets) * step
                packet.duration = step
                container.mux(packet)


def peaks_of_children() -> list[int]:
    """Bytes that each living child of this process held at most, since it runs its own program.

    `ru_maxrss` would not do: a child starts with the figure of its parent.
    """
    peaks = []
    for status in Path("/proc").glob("[0-9]*/status"):
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        if int(fields["PPid"]) == os.getpid() and "VmHWM" in fields:
            peaks.append(int(fields["VmHWM"].split()[0]) * 1024)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--height", type=int, default=1080)
    parser.add_argument("--frames", type=int, default=128)
    parser.add_argument("--codec", choices=["raw", "jpeg"], default="raw")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        part, video = Path(directory) / "part.mp4", Path(directory) / "long.mp4"
        write_part(part, given.height)
        repeat(part, video, round(given.hours * 3600 / SECONDS))
        store = MediaStore(Path(directory) / "cache", deadline=3_600, codec=given.codec)
        budget = Budget(video=VideoBudget(max_frames=given.frames))
        began = time.perf_counter()
        clip = store.load(MediaRef(str(video), "video"), budget, PatchFactors(32))
        result = {
            "hours": given.hours, "frames": list(clip.frames.shape), "source_frames": clip.source_frames,
            "file_mb": round(video.stat().st_size / 1e6), "seconds": round(time.perf_counter() - began, 1), "stored": store.counters.stored,
            "peak_mb_of_decoding_processes": [round(peak / 1e6) for peak in peaks_of_children()], "load": os.getloadavg()[0],
        }  # fmt: skip
        store.close()
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

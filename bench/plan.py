"""How long planning takes: 10,000 rows over 1,000 different videos, the first time, again, after some files changed, and with
every video made smaller.

    python bench/plan.py [--rows 10000] [--videos 1000] [--workers N] [--model DIRECTORY] [--json]

The videos are one short encoded clip, packed anew with another title each, so that no two files are alike; the model is
a tiny one of the built-in family unless one is given. Times are those of `plan_rows`; reading the rows and opening
tokenizer and processor are shown beside them, the start of the interpreter and its imports are not.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Literal


def encode(path: Path, frames: int = 96, size: tuple[int, int] = (240, 320)) -> None:
    """H.264, 12 frames per second; a bar moves, so that frames differ."""
    import av
    import numpy as np

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for at in range(frames):
            picture = np.zeros((*size, 3), np.uint8)
            picture[:, at * 3 : at * 3 + 20] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())


def pack(source: Path, target: Path, title: str) -> None:
    """The same packets in a new file with another title."""
    import av

    with av.open(str(source)) as old, av.open(str(target), "w") as new:
        new.metadata["title"] = title
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)


def write_rows(path: Path, rows: int, videos: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for at in range(rows):
            row = {
                "id": f"r{at}",
                "problem": f"Question {at}: which of these things is seen last in the video, and what happens to it afterwards?",
                "options": [f"thing {at % 7}", f"thing {at % 11} beside the door", "two people at a table", "none of them"],
                "answer": "A",
                "problem_type": "multiple choice",
                "video": f"{at % videos}.mp4",
            }
            file.write(json.dumps(row) + "\n")


def measure(folder: Path, model: str | None, rows: int, videos: int, workers: int | None) -> list[dict[str, Any]]:
    from evr1_core.data.plan import plan_rows
    from evr1_core.data.prompts import PromptBuilder
    from evr1_core.data.rows import read_samples
    from evr1_core.media.store import MediaStore
    from evr1_core.policy.load import load_adapter
    from evr1_core.types import Budget

    found: list[dict[str, Any]] = []

    def timed(what: str, action: Any) -> Any:
        began = time.perf_counter()
        made = action()
        found.append({"what": what, "seconds": round(time.perf_counter() - began, 3), "load": round(os.getloadavg()[0], 1)})
        return made

    def plan(limit: int = 20_000) -> Any:
        # A new store and builder each time, as in a new process.
        with closing(MediaStore(folder / "cache")) as store:
            builder = PromptBuilder(adapter, store, Budget(), max_prompt_tokens=limit, overlong=overlong, workers=workers)
            return plan_rows(samples, builder, folder / "cache")

    overlong: Literal["exclude", "shrink"] = "exclude"
    samples = timed("read the rows", lambda: read_samples(folder / "rows.jsonl").samples)
    adapter = timed("open tokenizer and processor", lambda: load_adapter(model or str(folder / "model")))
    first = timed("plan, first time", plan)
    again = timed("plan, second time", plan)
    assert again.rows == first.rows and again.planned == 0 and not first.exclusions
    for at in range(0, videos, 100):
        os.utime(folder / f"{at}.mp4")
    changed = timed("plan after 1 % of the files changed", plan)
    assert changed.rows == first.rows and changed.planned == rows // 100
    overlong = "shrink"
    limit = min(row.tokens for row in first.rows) * 2 // 3
    smaller = timed("plan, every video made smaller", lambda: plan(limit))
    assert all(row.budget is not None and row.tokens <= limit for row in smaller.rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--videos", type=int, default=1_000)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--model")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        encode(folder / "clip.mp4")
        for at in range(options.videos):
            pack(folder / "clip.mp4", folder / f"{at}.mp4", f"clip {at}")
        write_rows(folder / "rows.jsonl", options.rows, options.videos)
        if options.model is None:
            from evr1_models.tiny import make_tiny_qwen3_vl

            make_tiny_qwen3_vl(folder / "model")
        found = measure(folder, options.model, options.rows, options.videos, options.workers)
    report = {"rows": options.rows, "videos": options.videos, "workers": options.workers, "cores": os.cpu_count(), "times": found}
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(f"{options.rows:,} rows, {options.videos:,} videos, {os.cpu_count()} cores")
    for row in found:
        print(f"{row['what']:<38} {row['seconds']:>8.2f} s   (load {row['load']})")


if __name__ == "__main__":
    main()

"""Host memory of a run in workers, step by step: does it stay flat?

    python bench/memory_flat.py [--steps 200] [--workers 2] [--from-step 10] [--json out.json] [SETTING=VALUE ...]

A tiny random model learns from texts, images and videos on the `ray` backend, on the CPU. In MB after each step, for the driver and every
rank: `rss`, what /proc calls resident; `anon`, the part of it that no file backs, where a leak would be. The rest are pages of libraries
and of mapped files. Growth is the mean of the last tenth of the steps over that of as many steps from `--from-step` on. A line per
process says how many MB that is in a hundred steps, by least squares.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from evr1_core.config.load import load
from evr1_core.train import loop
from evr1_core.train.run import Run, open_run
from evr1_models.tiny import make_tiny_qwen3_vl

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


def write_rows(folder: Path, count: int = 24) -> Path:
    """Questions on a text, an image and a video in turn; the JSONL file."""
    import av

    rows = []
    for index in range(count):
        name, colour = list(COLOURS.items())[index % 4]
        row: dict[str, Any] = {"id": f"row {index}", "problem": f"What colour is a {name} square?", "problem_type": "multiple choice"}
        row |= {"options": list(COLOURS), "answer": "ABCD"[index % 4]}
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[10:40, 20:40] = colour
        if index % 3 == 0:
            with av.open(str(folder / f"{index}.mp4"), "w") as container:
                stream: Any = container.add_stream("libx264", rate=4)
                stream.width = stream.height = 64
                for step in range(6 + index % 7):
                    container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(picture, step, 0), format="rgb24")))
                container.mux(stream.encode())
            row["videos"] = [f"{index}.mp4"]
        elif index % 3 == 1:
            Image.fromarray(picture).save(folder / f"{index}.png")
            row["images"] = [f"{index}.png"]
        rows.append(row)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def memory(pid: int) -> dict[str, float]:
    """MB of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(fields[field].split()[0]) / 1024 for name, field in (("rss", "VmRSS"), ("anon", "RssAnon"))}


def look(run: Run, step: int) -> dict[str, float]:
    """After every step, in the place of a validation: memory of the driver and of each rank."""
    workers: Any = run.learner
    pids = {"driver": os.getpid()}
    for group in workers.workers.groups:
        pids |= {f"{group.name} {rank}": pid for rank, pid in enumerate(group.pids())}
    return {f"{name}/{kind}": value for name, pid in pids.items() for kind, value in memory(pid).items()}


def vary(run: Run, prompts: Any, answers: Any) -> Any:
    """Scores that are a function of the answer, since a random model is never right and would have nothing to learn from."""
    groups = SCORE(run, prompts, answers)
    return [replace(group, rollouts=tuple(_scored(rollout) for rollout in group.rollouts)) for group in groups]


def _scored(rollout: Any) -> Any:
    value = sum(rollout.completion.token_ids) % 7 / 7
    return replace(rollout, score=replace(rollout.score, status="scored", value=value, accuracy=value, format=0.0))


SCORE = loop.score


def run_steps(folder: Path, steps: int, workers: int, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Train; the rows of metrics.jsonl, each with what `look` saw."""
    model = make_tiny_qwen3_vl(folder / "model", layers=2, hidden=64, heads=2, vision_hidden=32)
    settings = [
        f"output={folder / 'runs'}",
        f"model.path={model}",
        "model.dtype=float32",
        "model.device=cpu",
        f"data.train=[{write_rows(folder)}]",
        "data.max_prompt_tokens=600",
        f"media.cache_dir={folder / 'cache'}",
        "rollout.engine=hf",
        "rollout.n=4",
        "rollout.max_tokens=6",
        "algorithm.name=grpo",
        "train.batch_size=4",
        f"train.steps={steps}",
        "train.lr=1e-4",
        "train.save_every=50",
        "train.keep=1",
        "train.micro_batch_tokens=600",
        "cluster.backend=ray",
        f"cluster.workers={workers}",
        "evaluate.every=1",
        "evaluate.first=false",
        *more,
    ]
    loaded = load([], settings)
    loop.score = vary
    run = open_run(loaded.config, loaded.origins)
    try:
        loop.fit(run, look)
    finally:
        run.close()
        loop.score = SCORE
    read = [[json.loads(line) for line in (run.config.directory / f"{name}.jsonl").read_text().splitlines()] for name in NAMES]
    seen = {row["step"]: row for row in read[1]}
    return [{**seen[row["step"]], **row} for row in read[0]]


NAMES = ("metrics", "validation")


def growth(rows: Sequence[Mapping[str, Any]], name: str, first: int) -> dict[str, float]:
    """Of one number, from step `first` on."""
    values = np.array([row[name] for row in rows if row["step"] >= first], dtype=float)
    part = max(1, len(values) // 10)
    start, end = values[:part].mean(), values[-part:].mean()
    slope = float(np.polyfit(np.arange(len(values)), values, 1)[0]) if len(values) > 1 else 0.0
    most = values.max()
    return {"start": start, "end": end, "most": most, "growth": end / start - 1, "most_growth": most / start - 1, "in_100": 100 * slope}


def summary(rows: Sequence[Mapping[str, Any]], first: int) -> dict[str, dict[str, float]]:
    """Process and kind -> growth; `evr1/NAME` is what the run itself logged as resources/rss_gib/NAME, with child processes, in MB."""
    logged = [name for name in rows[-1] if name.startswith("resources/rss_gib/")]
    rows = [{**row, **{f"evr1/{name.rpartition('/')[2]}": 1024 * row[name] for name in logged}} for row in rows]
    names = [name for name in rows[-1] if name.endswith(("/rss", "/anon")) or name.startswith("evr1/")]
    return {name: growth(rows, name, first) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--from-step", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*", help="overrides, for example algorithm.kl=loss")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        rows = run_steps(Path(folder), given.steps, given.workers, given.settings)
    found = summary(rows, given.from_step)
    print(f"{'MB':<24}{'start':>10}{'end':>10}{'most':>10}{'growth':>10}{'in 100 steps':>14}")
    for name, one in found.items():
        print(f"{name:<24}{one['start']:>10.1f}{one['end']:>10.1f}{one['most']:>10.1f}{one['growth']:>10.2%}{one['in_100']:>14.2f}")
    if given.json:
        given.json.write_text(json.dumps({"summary": found, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()

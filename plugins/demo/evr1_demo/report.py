"""The one-page report of the demo, made from the files that training and evaluation left. Self-contained HTML."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from evr1_core.evaluate.statistics import Figure, figure
from evr1_demo.scenes import KINDS

WIDTH, HEIGHT = 640, 200
"""Pixels of the reward curve."""
TOTAL = "all kinds"


@dataclass(frozen=True, slots=True)
class Bar:
    """Accuracy of one kind before and after."""

    kind: str
    before: Figure
    after: Figure


@dataclass(frozen=True, slots=True)
class Example:
    """One question of the report split with its frames, and what was answered before and after."""

    kind: str
    question: str
    options: tuple[str, ...]
    gold: str
    frames: tuple[str, ...]
    """PNG data URIs in the order of time."""
    before: Mapping[str, Any]
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """One group of training rollouts beside the frames that they are about."""

    step: int
    question: str
    gold: str
    frames: tuple[str, ...]
    rollouts: tuple[Mapping[str, Any], ...]


def write_report(path: Path, *, questions: Path, before: Path, after: Path, run: Path, facts: Mapping[str, str]) -> Path:
    """`questions`: folder of the question set; `before`, `after`: folders of two evaluations; `run`: folder of the training."""
    rows = {row["id"]: row for split in ("train", "report") for row in read_lines(questions / f"{split}.jsonl")}
    first, last = answers(before), answers(after)
    metrics = read_lines(run / "metrics.jsonl")
    page = _template().render(
        bars=bars(rows, first, last),
        curve=curve([(row["step"], row["reward/accuracy"]) for row in metrics if row.get("reward/accuracy") is not None]),
        examples=examples(questions, rows, first, last),
        groups=groups(questions, rows, run / "rollouts.jsonl"),
        facts=facts,
    )
    path.write_text(page, encoding="utf-8")
    return path


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def answers(folder: Path) -> dict[str, dict[str, Any]]:
    """Question -> its first row of `results.jsonl`."""
    return {row["id"]: row for row in reversed(read_lines(folder / "results.jsonl"))}


def bars(rows: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Bar]:
    """All questions first, then each kind, over the questions that have a number."""

    def over(results: Mapping[str, Any], kind: str | None) -> Figure:
        chosen = {name: row for name, row in results.items() if kind in (None, rows[name]["kind"])}
        return figure({name: [row["accuracy"]] for name, row in chosen.items() if row["accuracy"] is not None})

    return [Bar(kind or TOTAL, over(before, kind), over(after, kind)) for kind in (None, *KINDS)]


def examples(questions: Path, rows: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Example]:
    """Per kind the first question that became right, else the first one."""
    found: list[Example] = []
    for kind in KINDS:
        names = [name for name in after if name in before and rows[name]["kind"] == kind]
        names.sort(key=lambda name: (after[name]["accuracy"] or 0) - (before[name]["accuracy"] or 0), reverse=True)
        for name in names[:1]:
            row = rows[name]
            found.append(
                Example(kind, _words(row), tuple(row["options"]), row["answer"], frames_of(questions, row), before[name], after[name])
            )
    return found


def groups(questions: Path, rows: Mapping[str, Any], rollouts: Path) -> list[Answers]:
    """Of the first and of the last step that trained, one group whose answers differ."""
    trained = [row for row in read_lines(rollouts) if row["kept"]]
    found: list[Answers] = []
    for step in sorted({row["step"] for row in trained})[:: max(1, len({row["step"] for row in trained}) - 1)]:
        of_step = [row for row in trained if row["step"] == step]
        video = next((row["group"] for row in of_step if "videos" in rows[row["sample"]]), of_step[0]["group"])
        group = [row for row in of_step if row["group"] == video]
        row = rows[group[0]["sample"]]
        found.append(Answers(step, _words(row), row["answer"], frames_of(questions, row), tuple(group)))
    return found


def frames_of(questions: Path, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Every frame of the row's media as a PNG data URI."""
    import av

    uris: list[str] = []
    for path in (*row.get("images", ()), *row.get("videos", ())):
        with av.open(str(questions / path)) as container:
            uris += [png(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    return tuple(uris)


def png(pixels: np.ndarray) -> str:
    """uint8 [H, W, 3] -> data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def curve(points: Sequence[tuple[int, float]], window: int = 5) -> dict[str, Any]:
    """Step -> accuracy of its rollouts, as polylines of a drawing WIDTH x HEIGHT: each step, and the mean of `window` steps."""
    steps, values = [step for step, _ in points], [value for _, value in points]
    smooth = [sum(values[max(0, i - window + 1) : i + 1]) / len(values[max(0, i - window + 1) : i + 1]) for i in range(len(values))]
    span = max(1, steps[-1] - steps[0]) if steps else 1

    def line(heights: Sequence[float]) -> str:
        return " ".join(f"{(s - steps[0]) / span * WIDTH:.1f},{(1 - v) * HEIGHT:.1f}" for s, v in zip(steps, heights, strict=True))

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "raw": line(values),
        "smooth": line(smooth),
        "first": steps[0] if steps else 0,
        "last": steps[-1] if steps else 0,
    }


def _words(row: Mapping[str, Any]) -> str:
    return row["problem"].replace("<video>", "").replace("<image>", "").strip()


def _template():  # noqa: ANN202 - a jinja2 template
    import jinja2

    text = (files("evr1_templates") / "report" / "demo.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda share: "–" if share is None else f"{100 * share:.0f} %"
    return environment.from_string(text)

"""One page of evaluations: what `templates/report/eval.html.j2` shows, as plain values. Frames come from the cache, by their keys."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from evr1_core.evaluate.benchmark import Record, official_of, table
from evr1_core.evaluate.results import differences, read_record
from evr1_core.evaluate.stored import StoredRun
from evr1_core.media.cache import FrameCache
from evr1_core.media.store import default_cache_dir
from evr1_core.types import Clip

WIDTH = 220
"""Pixels of a bar of 100 %."""
SIDE = 160
"""Longest side of a shown frame, pixels."""
QUALITY = 70
LONGEST_TEXT = 4_000
"""Characters of one answer or prompt on the page."""


@dataclass
class Frames:
    """Frames on the page: each clip once, bounded in number and in bytes."""

    per_clip: int = 8
    max_bytes: int = 20 << 20
    clips: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Key -> data URLs and seconds, or why there are none."""
    used: int = 0

    def add(self, medium: Mapping[str, Any], caches: Sequence[FrameCache]) -> str:
        """Take the frames of a medium of a result row; returns its key."""
        key = str(medium.get("key", ""))
        if key not in self.clips:
            self.clips[key] = self._take(key, caches)
        return key

    def _take(self, key: str, caches: Sequence[FrameCache]) -> dict[str, Any]:
        if self.used >= self.max_bytes:
            return {"frames": [], "why": "the page holds as many frames as it may; see --megabytes"}
        clip = next((found for cache in caches if (found := cache.get(key)) is not None), None)
        if clip is None:
            return {"frames": [], "why": "its frames are not in the frame cache any more"}
        count = len(clip.times)
        places = sorted({round(i * (count - 1) / max(1, min(self.per_clip, count) - 1)) for i in range(min(self.per_clip, count))})
        urls = [jpeg(clip, place) for place in places]
        self.used += sum(map(len, urls))
        frames = [{"url": url, "time": round(clip.times[place], 2)} for url, place in zip(urls, places, strict=True)]
        return {"frames": frames, "why": f"{len(places)} of {count} frames" if len(places) < count else ""}


def jpeg(clip: Clip, place: int) -> str:
    """One frame, made small, as a data URL."""
    from PIL import Image

    picture = Image.fromarray(clip.frames[place].transpose(1, 2, 0))
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def page(runs: Sequence[StoredRun], *, frames: Frames, questions: int = 300, cache_dir: Path | None = None) -> str:
    """The HTML of these runs, runs over the same questions beside each other. No part of it is loaded from elsewhere."""
    by_title: dict[str, list[StoredRun]] = {}
    for run in runs:
        by_title.setdefault(run.title, []).append(run)
    sections = [section(place, title, found, frames, questions, cache_dir) for place, (title, found) in enumerate(by_title.items())]
    environment = _environment()
    template = environment.from_string((files("evr1_templates") / "report" / "eval.html.j2").read_text(encoding="utf-8"))
    html = template.render(sections=sections, clips=script_json(frames.clips), width=WIDTH)
    return html.encode("utf-8", "replace").decode().replace("\0", "\ufffd")  # what broken output may hold and a page may not


def section(place: int, title: str, runs: Sequence[StoredRun], frames: Frames, most: int, cache_dir: Path | None) -> dict[str, Any]:
    """One benchmark: its runs, tables and questions."""
    records = [run.records() for run in runs]
    names = _labels(runs)
    return {
        "place": place,
        "title": title,
        "runs": [_run(name, run) for name, run in zip(names, runs, strict=True)],
        "differences": differences(dict(runs[0].settings), dict(runs[1].settings))[:40] if len(runs) == 2 else [],
        "tables": tables(runs, records),
        **shown_questions(runs, names, frames, most, cache_dir),
    }


def _run(name: str, run: StoredRun) -> dict[str, Any]:
    summary = run.summary
    signs = [sign["text"] for sign in summary.get("degenerate", [])]
    unfinished = [] if summary else ["this evaluation was not finished: there is no summary"]
    return {"name": name, "directory": str(run.directory), "summary": summary, "signs": [*unfinished, *signs], "settings": run.settings}


def tables(runs: Sequence[StoredRun], records: Sequence[Sequence[Record]]) -> list[dict[str, Any]]:
    """The tables of the summaries: rows with one figure per run, the official mean of the same rows beside it where it can be said."""
    found = []
    titles = dict.fromkeys(title for run in runs for title in run.summary.get("tables", {}))
    for title in titles:
        columns = [run.summary.get("tables", {}).get(title, {}) for run in runs]
        beside = [official_table(title, of_run) for of_run in records]
        rows = [
            {
                "name": name,
                "figures": [{"strict": one.get(name), "official": other.get(name)} for one, other in zip(columns, beside, strict=True)],
            }
            for name in dict.fromkeys(name for column in columns for name in column)
        ]
        shares = all(
            0 <= (one["strict"] or {}).get("value", 0) <= 1
            for row in rows
            for one in row["figures"]
            if (one["strict"] or {}).get("value") is not None
        )
        found.append({"title": title, "rows": rows, "shares": shares, "official": any(beside)})
    return found


def official_table(title: str, records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Means of the official readings by the rows of a table whose title is a column of the questions; else empty."""
    if not any(record.official for record in records):
        return {}
    if title == "problem_type":
        made = table(records, lambda record: record.sample.problem_type, official_of)
    elif any(title in record.sample.extra for record in records):
        made = table(records, lambda record: record.sample.extra.get(title, "none"), official_of)
    else:
        return {}
    return {name: {"value": one.value, "low": one.low, "high": one.high, "n": one.n} for name, one in made.items()}


def shown_questions(runs: Sequence[StoredRun], names: Sequence[str], frames: Frames, most: int, cache_dir: Path | None) -> dict[str, Any]:
    """Questions with the answers of every run, evenly over the first run's file where there are more than `most`."""
    ids = list(dict.fromkeys(row["id"] for run in runs for row in run.rows()))
    chosen = {ids[i * len(ids) // most] for i in range(most)} if len(ids) > most else set(ids)
    found: dict[str, dict[str, Any]] = {}
    for name, run in zip(names, runs, strict=True):
        caches = [FrameCache(folder) for folder in dict.fromkeys(_caches(run, cache_dir))]
        for row in run.rows():
            if row["id"] not in chosen:
                continue
            question = found.setdefault(row["id"], _question(row))
            keys = [frames.add(medium, caches) for medium in row.get("media", [])]
            question["answers"].append(_answer(name, row, keys))
    for question in found.values():
        question["statuses"] = " ".join(sorted({answer["outcome"] for answer in question["answers"]}))
        keys = [tuple(answer["keys"]) for answer in question["answers"] if answer["keys"]]
        question["keys"] = keys[0] if keys else ()
        question["other_frames"] = len(set(keys)) > 1
    return {"questions": [found[name] for name in ids if name in found], "all_questions": len(ids)}


def _caches(run: StoredRun, cache_dir: Path | None) -> list[Path]:
    named = [Path(run.summary["frames"])] if run.summary.get("frames") else []
    return [cache_dir] if cache_dir else [*named, default_cache_dir()]


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    sample = row["sample"]
    options = sample.get("options")
    pairs = (
        list(options.items())
        if isinstance(options, dict)
        else [("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i % 26], one) for i, one in enumerate(options or [])]
    )
    tags = [sample["problem_type"], *(str(value) for value in (sample.get("extra") or {}).values() if isinstance(value, (str, int)))]
    return {
        "id": row["id"],
        "problem": _clip(sample["problem"]),
        "options": pairs,
        "gold": _clip(str(sample["answer"]), 300),
        "files": [_place(ref) for ref in sample["media"]],
        "tags": " · ".join(tag for tag in tags if 0 < len(tag) <= 60)[:300],
        "answers": [],
    }


def _answer(name: str, row: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    record = read_record(row)
    right = record.accuracy is not None and record.accuracy >= 1
    outcome = "right" if right else "wrong" if record.status == "scored" else record.status
    read = record.score.answer if record.score else None
    frames = [f"{medium['frames']} frames of {medium['width']}x{medium['height']}" for medium in row.get("media", [])]
    return {
        "run": name,
        "outcome": outcome,
        "accuracy": record.accuracy,
        "answer": read,
        "official": record.official,
        "text": _clip(record.text),
        "prompt": _clip(row.get("prompt", "")),
        "reason": row.get("reason") or "",
        "facts": ", ".join(
            [
                *frames,
                *([f"{row['prompt_tokens']} prompt tokens"] if "prompt_tokens" in row else []),
                *([f"{record.tokens} tokens, {record.finish_reason}"] if record.finish_reason else []),
            ]
        ),
        "keys": keys,
    }


def _place(ref: Mapping[str, Any]) -> str:
    part = (
        ""
        if ref.get("start") is None and ref.get("end") is None
        else f" [{ref.get('start') or 0} s, {'end' if ref.get('end') is None else ref['end']} s]"
    )
    return f"{ref['path']}{part}"


def _clip(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text):,} characters)"


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    """Names of the models, with the folder where two have one name."""
    names = [run.model for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({run.directory})" for name, run in zip(names, runs, strict=True)]


def script_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element."""
    return json.dumps(value, ensure_ascii=True).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _environment():  # noqa: ANN202 - a jinja2 environment
    import jinja2
    from markupsafe import Markup

    from evr1_core.evaluate.suite import interval

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["figure"] = lambda found: interval(found["value"], found["low"], found["high"]) if found else "–"
    environment.filters["safe_json"] = Markup
    return environment

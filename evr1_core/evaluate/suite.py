"""Several evaluations of one model: which benchmark stands where, and one table of them all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evr1_core import plugins
from evr1_core.config.load import Flag
from evr1_core.errors import RequestError, nearest
from evr1_core.record.files import to_json, write_atomic

OFFICIAL = ("official", "official value", "official low", "official high", "official counted")
STATUSES = ("scored", "unparsed", "failed", "invalid_gold", "excluded")
COLUMNS = (
    *("benchmark", "variant", "metric", "value", "low", "high", "counted"),
    *OFFICIAL,
    *("answers", *STATUSES, "cut off", "remarks"),
)
"""Of one line of the table."""


class Wanted(NamedTuple):
    """A benchmark that was asked for."""

    name: str
    variant: str | None = None

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name


def read_names(text: str, variant: str | None = None) -> list[Wanted]:
    """`a,b:subtitles` -> the benchmarks with their variants; `variant` is that of those without one.

    Raises RequestError for a name that no plugin offers, a variant that its plugin doesn't list, and one that stands there twice.
    """
    found: list[Wanted] = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        name, _, own = part.partition(":")
        wanted = Wanted(name, own or variant)
        spec = plugins.benchmark(name)
        if wanted.variant and spec.variants and wanted.variant not in spec.variants:
            raise RequestError(f"benchmark {name!r} has no variant {wanted.variant!r}{nearest(wanted.variant, spec.variants)}")
        if wanted in found:
            raise RequestError(f"--benchmark: {part} stands there twice")
        found.append(wanted)
    if not found:
        raise RequestError("--benchmark: give names, for example `a,b`; `evr1 benchmarks list`")
    return found


def root_of(wanted: Wanted, root: Path | None, alone: bool, adapter: Any = None) -> Path:
    """Where the release of a benchmark is: `root/NAME` where that folder is there, else `root` itself when it is the only one.

    Raises RequestError naming the folder that is missing.
    """
    if root is None:
        own = getattr(adapter, "root", None)
        if own is None:
            raise RequestError(
                f"--benchmark {wanted.name} needs --root, the folder of its official release; see `evr1 benchmarks show {wanted.name}`"
            )
        return Path(own)
    folder = root / wanted.name
    if folder.is_dir():
        return folder
    if alone:
        return root
    raise RequestError(
        f"{folder}: no such folder; with several benchmarks --root holds one folder for each, by its name. "
        f"`evr1 benchmarks show {wanted.name}` says what belongs into it"
    )


def budget_flags(name: str, benchmark: str | None) -> dict[str, Flag]:
    """The settings of a budget, with what differs for this benchmark, as flags of the configuration."""
    spec = plugins.budget(name)
    settings = {**spec.settings, **spec.benchmarks.get(benchmark or "", {})}
    return {key: Flag(value, f"--budget {name}") for key, value in settings.items()}


def row(title: str, variant: str | None, summary: Mapping[str, Any]) -> dict[str, Any]:
    """One line of the table: the strict headline, the official number of its name beside it (else the first), counts, remarks."""
    head, numbers = summary.get("headline") or {}, summary.get("official") or {}
    name = next((name for name in numbers if name == summary.get("metric")), next(iter(numbers), ""))
    official = numbers.get(name, {})
    counts = summary.get("counts", {})
    remarks = [*(sign["text"] for sign in summary.get("degenerate", [])), *(summary.get("notes") or [])]
    return {
        "benchmark": title,
        "variant": variant or "",
        "metric": summary.get("metric", ""),
        "value": head.get("value"), "low": head.get("low"), "high": head.get("high"), "counted": head.get("n"),
        "official": name,
        "official value": official.get("value"), "official low": official.get("low"), "official high": official.get("high"),
        "official counted": official.get("n"),
        "answers": summary.get("n"),
        **{status: counts.get(status) for status in STATUSES},
        "cut off": summary.get("truncated"),
        "remarks": "; ".join(remarks),
    }  # fmt: skip


def failed_row(wanted: Wanted, error: str) -> dict[str, Any]:
    """The line of a benchmark that could not be evaluated."""
    return {**dict.fromkeys(COLUMNS), "benchmark": wanted.name, "variant": wanted.variant or "", "remarks": f"not evaluated: {error}"}


def shown(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The lines as people read them: numbers in per cent with their intervals."""
    return [
        {
            "benchmark": f"{line['benchmark']}:{line['variant']}" if line["variant"] else line["benchmark"],
            "metric": line["metric"] or "",
            "strict": interval(line["value"], line["low"], line["high"]),
            "n": _count(line["counted"]),
            "official": interval(line["official value"], line["official low"], line["official high"]),
            "official n": _count(line["official counted"]),
            "unparsed": _count(line["unparsed"]),
            "failed": _count(line["failed"]),
            "left out": _count(None if line["excluded"] is None else line["excluded"] + (line["invalid_gold"] or 0)),
            "cut off": "" if line["cut off"] is None else f"{line['cut off']:.0%}",
            "remarks": line["remarks"] or "",
        }
        for line in rows
    ]


def interval(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """`71.4 [69.6, 73.1]` of shares; numbers above 1 are not shares and stay as they are."""
    if value is None:
        return "–"
    scale, places = (100, 1) if max(abs(value), abs(high or 0)) <= 1 else (1, 3)
    text = f"{scale * value:.{places}f}"
    return text if low is None or high is None else f"{text} [{scale * low:.{places}f}, {scale * high:.{places}f}]"


def markdown(rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    """The table as Markdown, the facts of the suite above it."""
    lines = shown(rows)
    columns = [column for column in (lines[0] if lines else {}) if any(line[column] for line in lines)]
    parts = [f"- {name}: {_cell(str(value))}" for name, value in about.items() if value not in (None, "", [])]
    table = [columns, ["---"] * len(columns), *([_cell(line[column]) for column in columns] for line in lines)]
    return "\n".join([*parts, "", *(f"| {' | '.join(cells)} |" for cells in table), ""])


def comma_separated(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as CSV, numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_tables(folder: Path, rows: Sequence[Mapping[str, Any]], about: Mapping[str, Any], summaries: Mapping[str, Any]) -> list[Path]:
    """`suite.md`, `suite.csv` and `suite.json` of these lines; the JSON holds the whole summaries too."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.loads(to_json({"about": dict(about), "rows": list(rows), "summaries": dict(summaries)}))
    texts = {"md": markdown(rows, about), "csv": comma_separated(rows), "json": json.dumps(whole, indent=1, ensure_ascii=False) + "\n"}
    paths = [folder / f"suite.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_atomic(path, text)
    return paths


def refresh_tables(folder: Path) -> None:
    """Write the tables in this folder anew from the summaries of its runs, where it has any: their scores may have changed."""
    path = folder / "suite.json"
    if not path.exists():
        return
    whole = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = []
    for line in whole["rows"]:
        wanted = Wanted(line["benchmark"], line["variant"] or None)
        inside, alone = folder / wanted.folder / "summary.json", folder / "summary.json"
        found = inside if inside.exists() else alone
        if found.exists():
            whole["summaries"][wanted.folder] = json.loads(found.read_text(encoding="utf-8"))
            line = row(wanted.name, wanted.variant, whole["summaries"][wanted.folder])
        rows.append(line)
    write_tables(folder, rows, whole["about"], whole["summaries"])


def _count(value: int | None) -> str:
    return "" if value is None else str(value)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")

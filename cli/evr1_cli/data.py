"""`evr1 data check` and `evr1 data show`: read rows as a run does, and see what a model would be shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.data.rows import Rows
    from evr1_core.types import Sample

app = group("Check and show data.")

_MOST = 20
"""Lines of one table; --json has them all."""

MediaRoot = Annotated[Path | None, typer.Option(help="Folder that relative media paths start from; else the data file's own.")]
Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


@app.command()
def check(
    data: Annotated[list[Path], typer.Argument(help="JSON, JSONL, Parquet or CSV files.")],
    media_root: MediaRoot = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first rows.")] = None,
    media: Annotated[bool, typer.Option("--media/--no-media", help="Look whether the media files exist.")] = True,
    json: Json = False,
) -> None:
    """Read and check every row, its gold answer too; print counts and each bad row. Exit code 1 when a row is bad."""
    import json as json_module
    from dataclasses import asdict

    rows = _with_golds_checked(_read(data, media_root, limit, media))
    counts = _counts(rows.samples)
    if json:
        report = {
            "rows": len(rows.samples) + len(rows.exclusions),
            "good": len(rows.samples),
            "bad": [asdict(exclusion) for exclusion in rows.exclusions],
            **counts,
            "notes": list(rows.notes),
        }
        typer.echo(json_module.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_report(rows, counts)
    if rows.exclusions:
        raise typer.Exit(1)


@app.command()
def show(
    data: Annotated[Path, typer.Argument(help="A JSON, JSONL, Parquet or CSV file.")],
    row: Annotated[str, typer.Argument(metavar="ID|INDEX", help="Id of a row, or its number from 1.")],
    template: Annotated[str | None, typer.Option(help="A template file, or the name of a shipped one.")] = None,
    system: Annotated[str | None, typer.Option(help="Text of a system turn.")] = None,
    media_root: MediaRoot = None,
    json: Json = False,
) -> None:
    """Print the prompt that training and evaluation build from a row, with media at their places."""
    import json as json_module

    from evr1_core.data.prompts import render, template_for

    sample = _find(_read([data], media_root, None, media=False), data, row)
    name = template or template_for(sample.problem_type)
    messages = render(sample, name, system)
    if json:
        typer.echo(json_module.dumps({"id": sample.id, "template": name, "messages": messages}, indent=2, ensure_ascii=False))
        return
    typer.echo(f"id {sample.id}   problem type {sample.problem_type}   data type {sample.data_type}   template {name}\n")
    refs = iter(sample.media)
    for message in messages:
        parts = [item["text"] if item["type"] == "text" else _medium(next(refs)) for item in message["content"]]
        typer.echo(f"--- {message['role']}\n{''.join(parts)}\n")
    typer.echo(f"--- answer\n{sample.answer}")


def _read(files: list[Path], media_root: Path | None, limit: int | None, media: bool) -> Rows:

    from evr1_core.data.rows import read_samples
    from evr1_core.plugins import serves

    return read_samples(files, media_root, "exclude", limit, serves, check_media=media)


def _with_golds_checked(rows: Rows) -> Rows:
    """Rows whose gold answer or scoring options can't be used become bad ones, as the scorer would say in a run."""
    from dataclasses import replace

    from evr1_core.config.models import RewardSection
    from evr1_core.errors import RequestError
    from evr1_core.scoring.score import Scorer
    from evr1_core.types import Exclusion

    scorer = Scorer(RewardSection())
    faults = []
    for sample in rows.samples:
        try:
            cause = scorer.check(sample)
            fault = f"invalid_gold: {cause}: {str(sample.answer)[:60]!r}" if cause else ""
        except RequestError as error:
            fault = str(error)
        if fault:
            faults.append(Exclusion(sample.id, "invalid_gold", f"{rows.places[sample.id]}: answer: {fault}"))
    bad = {exclusion.sample_id for exclusion in faults}
    return replace(rows, samples=[sample for sample in rows.samples if sample.id not in bad], exclusions=[*rows.exclusions, *faults])


def _find(rows: Rows, data: Path, row: str) -> Sample:
    """By id first, then by number."""
    from evr1_core.errors import RequestError, nearest

    for sample in rows.samples:
        if sample.id == row:
            return sample
    for exclusion in rows.exclusions:
        if exclusion.sample_id == row:
            raise RequestError(exclusion.detail)
    if row.isascii() and row.isdigit() and 1 <= int(row) <= len(rows.samples):
        return rows.samples[int(row) - 1]
    hint = nearest(row, [sample.id for sample in rows.samples]) if len(rows.samples) <= 5_000 else ""
    raise RequestError(f"{data}: no row {row!r} among {len(rows.samples)} good ones{hint if len(hint) < 300 else ''}")


def _counts(samples: list[Sample]) -> dict[str, dict[str, Any]]:
    from collections import Counter

    return {
        "problem_types": dict(Counter(sample.problem_type for sample in samples).most_common()),
        "data_types": dict(Counter(sample.data_type for sample in samples).most_common()),
        "sources": dict(Counter(sample.source for sample in samples if sample.source).most_common()),
        "offline": {"with trajectories": sum(bool(sample.offline) for sample in samples)},
    }


def _print_report(rows: Rows, counts: dict[str, dict[str, Any]]) -> None:
    from collections import Counter

    for exclusion in rows.exclusions:
        typer.echo(exclusion.detail)
    for note in rows.notes:
        typer.echo(f"note: {note}")
    for title, table in counts.items():
        filled = {name: count for name, count in table.items() if count}
        if filled:
            typer.echo(title.replace("_", " "))
            for name, count in list(filled.items())[:_MOST]:
                typer.echo(f"  {count:>8}  {name}")
            if len(filled) > _MOST:
                typer.echo(f"  {sum(list(filled.values())[_MOST:]):>8}  in {len(filled) - _MOST} others")
    reasons = Counter(exclusion.reason for exclusion in rows.exclusions)
    bad = f", {len(rows.exclusions)} bad ({', '.join(f'{count} {reason}' for reason, count in reasons.most_common())})" if reasons else ""
    typer.echo(f"{len(rows.samples) + len(rows.exclusions)} rows: {len(rows.samples)} good{bad}")


def _medium(ref: Any) -> str:
    cut = "" if ref.start is None and ref.end is None else f" from {ref.start or 0} s to {'the end' if ref.end is None else f'{ref.end} s'}"
    return f"[{ref.kind}: {ref.path}{cut}]\n"

"""`evr1 data check`, `show`, `plan` and `filter`: read rows as a run does, see what a model would be shown and how long it gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli import data_filter
from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.capacity.cluster import Machines
    from evr1_core.config.models import RunConfig
    from evr1_core.data.plan import DataPlan
    from evr1_core.data.rows import Rows
    from evr1_core.types import Sample

app = group("Check, show, plan and filter data.")
app.command("filter")(data_filter.command)

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


@app.command()
def plan(
    data: Annotated[list[Path], typer.Argument(metavar="DATA...", help="JSON, JSONL, Parquet or CSV files.")],
    model: Annotated[str | None, typer.Option("--model", help="model.path: its tokenizer and sizes count; no weights are read.")] = None,
    config: Annotated[list[Path] | None, typer.Option("--config", help="YAML file of the run; may be given several times.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For example media.train.video.fps=1.")] = None,
    phase: Annotated[str, typer.Option(help="Whose budget: train or evaluate.")] = "train",
    max_prompt_tokens: Annotated[int | None, typer.Option(min=1, help="data.max_prompt_tokens: the limit.")] = None,
    media_root: MediaRoot = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first rows.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Headers read at the same time; else one per core, 8 at most.")] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="FILE", help="Write the numbers of every row there, as JSON lines.")
    ] = None,
    gpu: Annotated[str | None, typer.Option(help="Plan memory and time on this kind of GPU, for example h200.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="So many of them.")] = None,
    gpu_gib: Annotated[float | None, typer.Option(min=1, help="Memory of a kind that isn't known, GiB.")] = None,
    gpu_tflops: Annotated[float | None, typer.Option(min=1, help="Its dense bfloat16 speed, TFLOP/s.")] = None,
    host_gib: Annotated[float | None, typer.Option(min=1, help="Memory of one node, GiB: more is refused.")] = None,
    json: Json = False,
) -> None:
    """Count the tokens of every prompt from the headers of its media; nothing is decoded, and the second time is instant.

    With --gpu or --gpus also the memory of every phase, and a rough time per step. Exit code 1 when a row is longer than the limit
    or can't be used, 2 when the run can't fit the GPUs.
    """
    from evr1_cli.listing import print_json
    from evr1_core.config.load import Flag, load

    asked = _machines(gpu, gpus, gpu_gib, gpu_tflops, host_gib)
    flags = {
        "model.path": Flag(model, "--model"),
        "data.media_root": Flag(str(media_root) if media_root else None, "--media-root"),
        "data.max_prompt_tokens": Flag(max_prompt_tokens, "--max-prompt-tokens"),
        "data.limit": Flag(limit, "--limit"),
    }
    run = load(config or [], override or [], flags).config
    planned, found = _planned(run, data, phase, workers, asked)
    if rows is not None:
        _write_rows(rows, planned)
    if json:
        print_json(found)
    else:
        _print_plan(found)
    if "capacity" in found:
        from evr1_core.capacity.plan import check, lines

        for line in () if json else lines(found["capacity"]):
            typer.echo(line)
        check(found["capacity"])
    if found["fit"] < found["rows"] or found["bad_rows"]:
        raise typer.Exit(1)


def _machines(gpu: str | None, gpus: int | None, gib: float | None, tflops: float | None, host_gib: float | None) -> Machines | None:
    if (gpu, gpus, gib, tflops, host_gib) == (None,) * 5:  # the plan of memory needs torch
        return None
    from evr1_core.capacity.cluster import machines

    return machines(gpu, gpus, gib, tflops, host_gib)


def _planned(run: RunConfig, data: list[Path], phase: str, workers: int | None, asked: Machines | None) -> tuple[DataPlan, dict[str, Any]]:
    """The plan of the rows that can be read, and its report with the rows that can't."""
    from contextlib import closing
    from dataclasses import asdict

    from evr1_core.data.plan_report import report
    from evr1_core.data.rows import read_samples
    from evr1_core.errors import RequestError
    from evr1_core.evaluate.settings import excluding
    from evr1_core.plugins import serves
    from evr1_core.policy.load import load_adapter
    from evr1_core.rollout.setup import model_name, open_builder, open_store
    from evr1_core.train.planning import plan_with_progress

    if phase not in ("train", "evaluate"):
        raise RequestError(f"--phase {phase}: train or evaluate")
    run = run if phase == "train" else excluding(run)
    read = read_samples(data, run.data.media_root, "exclude", run.data.limit, lambda name: serves(name, run.rewards.use), check_media=False)
    adapter = load_adapter(model_name(run), run.model.chat)
    with closing(open_store(run)) as store:
        builder = open_builder(run, adapter, store, "train" if phase == "train" else "evaluate")
        if workers is not None:
            builder.lengths.workers = workers
        planned = plan_with_progress(read.samples, builder, store)
        found = report(planned, read.samples, builder.max_prompt_tokens, builder.budget, builder.adapter.factors)
        if asked is not None:
            from evr1_core.capacity.plan import plan_capacity
            from evr1_core.capacity.workload import from_plan

            found["capacity"] = plan_capacity(run, adapter, from_plan(run, planned, read.samples), asked)
    return planned, {**found, "phase": phase, "bad_rows": [asdict(exclusion) for exclusion in read.exclusions], "notes": list(read.notes)}


def _write_rows(path: Path, planned: DataPlan) -> None:
    import json as json_module

    from evr1_core.data.plan_report import row_values

    with path.open("w", encoding="utf-8") as file:
        file.writelines(json_module.dumps(row_values(row), ensure_ascii=False) + "\n" for row in planned.rows)


def _print_plan(found: dict[str, Any]) -> None:
    from evr1_cli.listing import aligned

    for note in found["notes"]:
        typer.echo(f"note: {note}")
    for exclusion in found["bad_rows"][:_MOST]:
        typer.echo(exclusion["detail"])
    for line in aligned(_table(found)) if found["tokens"] else ():
        typer.echo(line)
    if found["vision_share"] is not None:
        typer.echo(f"{100 * found['vision_share']:.1f} % of the tokens stand for media")
    _print_rows(found)
    typer.echo(_summary(found))


def _summary(found: dict[str, Any]) -> str:
    kept = f", {found['rows'] - found['planned']:,} rows known before" if found["planned"] < found["rows"] else ""
    smaller = f" ({len(found['shrunk']):,} with smaller media)" if found["shrunk"] else ""
    unusable = sum(map(len, found["unusable"].values())) + len(found["bad_rows"])
    return (
        f"{found['rows'] + len(found['bad_rows']):,} rows, {found['media']:,} media, {found['seconds']:.1f} s{kept}: "
        f"{found['fit']:,} fit into {found['limit']:,} tokens{smaller}, {len(found['too_long']):,} are too long, {unusable:,} can't be used"
    )


def _table(found: dict[str, Any]) -> list[list[str]]:
    """Distributions: of all rows, then the tokens of each type."""
    names = {"tokens": "tokens", "vision_tokens": "vision tokens", "frames": "frames of videos"}
    lines = [(title, "", found[name]) for name, title in names.items() if found[name]]
    for kind in ("data_types", "problem_types"):
        for name, values in list(found[kind].items())[:_MOST]:
            lines.append((f"tokens, {name}", f"{values['rows']:,} rows", values["tokens"]))
    columns = list(found["tokens"])
    return [
        ["", "", *columns],
        *([title, rows, *(f"{values.get(column, ''):,}" if values else "" for column in columns)] for title, rows, values in lines),
    ]


def _print_rows(found: dict[str, Any]) -> None:
    """Rows over the limit with their numbers, media by what is wrong with them, and the budget that would do."""
    for row in found["too_long"][:_MOST]:
        media = ", ".join(_planned_medium(*size) for size in row["sizes"])
        typer.echo(f"too long  {row['id']}: {row['tokens']:,} tokens, {row['vision']:,} of them for {media or 'no media'}")
    if len(found["too_long"]) > _MOST:
        typer.echo(f"too long  and {len(found['too_long']) - _MOST:,} more; --json and --rows have them all")
    for reason, rows in found["unusable"].items():
        typer.echo(f"{reason}: {len(rows):,} rows")
        for row in rows[:_MOST]:
            typer.echo(f"  {row['id']}: {row['detail']}")
        if len(rows) > _MOST:
            typer.echo(f"  and {len(rows) - _MOST:,} more; --json has them all")
    if found["fitting_pixels"]:
        budget = ", ".join(f"media.{found['phase']}.{name}={pixels}" for name, pixels in found["fitting_pixels"].items())
        typer.echo(f"all rows would fit with {budget}")
    elif found["too_long"]:
        typer.echo("no max_pixels makes all rows fit: lower fps or max_frames, or raise the limit")


def _planned_medium(kind: str, frames: int, height: int, width: int) -> str:
    return f"{kind} of {frames} x {width}x{height}" if kind == "video" else f"{kind} of {width}x{height}"


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

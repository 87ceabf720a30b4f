"""`evr1 data filter`: keep the rows that a model answers right sometimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.data.rows import Rows
    from evr1_core.evaluate.filter import PassRate


def command(
    data: Annotated[list[Path], typer.Argument(metavar="DATA...", help="JSON, JSONL, Parquet or CSV files.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="JSONL file for the rows that are kept.")],
    model: Annotated[str | None, typer.Option("--model", help="model.path: a preset, a directory or a repository id.")] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Answers per row.")] = 8,
    keep: Annotated[str, typer.Option("--keep", metavar="RANGE", help="Range of the pass rate p.")] = "0<p<1",
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Accuracy from which on an answer passes.")] = 0.5,
    store_rollouts: Annotated[
        bool, typer.Option("--store-rollouts", help="Write the answers that passed as offline_output, for mix-policy.")
    ] = False,
    config: Annotated[list[Path] | None, typer.Option("--config", help="YAML file of the run; may be given several times.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For example rollout.temperature=0.7.")] = None,
    media_root: Annotated[Path | None, typer.Option("--media-root", help="Folder that relative media paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first rows.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Answer anew; older answers are moved aside.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw k answers to every row as training would, and keep the rows whose pass rate lies in a range.

    Answers stand in a folder beside FILE (kept.jsonl: kept.rollouts/) as they come: the same command again draws only what is missing,
    and another --keep or --threshold draws none.
    """
    from evr1_cli.listing import print_json
    from evr1_core.config.load import Flag, load
    from evr1_core.evaluate.filter import as_training, check_output, histogram, keep_rows, moved_media, read_range, write_kept

    within = read_range(keep)
    flags = {
        "model.path": Flag(model, "--model"),
        "data.media_root": Flag(str(media_root) if media_root else None, "--media-root"),
        "data.limit": Flag(limit, "--limit"),
    }
    run = as_training(load(config or [], override or [], flags).config, k)
    files = [path.expanduser() for path in data]
    rows = _rows(run, files)
    check_output(output, files, rows, run.data.media_root)
    rates, excluded = _measure(run, rows, files, output, threshold, fresh)
    if not json:
        _print(rates, excluded)
    kept = keep_rows(rates, within, keep)
    count = write_kept(output, files, rows, kept, store_rollouts)
    if json:
        print_json({"rows": len(rates), "kept": count, "histogram": histogram(rates), "bad_rows": excluded, "output": output})
        return
    typer.echo(f"{count:,} of {len(rates):,} rows with {keep} are in {output}")
    folder = moved_media(output, files, rows, run.data.media_root)
    if folder:
        typer.echo(f"note: paths of media in it start from the folder of the data: train with data.media_root={folder}")


def _rows(config: RunConfig, files: list[Path]) -> Rows:
    from evr1_core import plugins
    from evr1_core.data.rows import read_samples
    from evr1_core.errors import RequestError

    rows = read_samples(
        files,
        media_root=config.data.media_root,
        bad_rows=config.data.bad_rows,
        limit=config.data.limit,
        known_problem_type=lambda name: plugins.serves(name, config.rewards.use),
        advice="Mend them, or leave them out with --set data.bad_rows=exclude.",
    )
    if not rows.samples:
        raise RequestError(f"no usable row in {', '.join(map(str, files))}: {len(rows.exclusions)} excluded")
    return rows


def _measure(
    config: RunConfig, rows: Rows, files: list[Path], output: Path, threshold: float, fresh: bool
) -> tuple[list[PassRate], dict[str, int]]:
    """(pass rates in the order of the rows, bad rows by reason); draws the answers that are not on the disk yet."""
    from collections import Counter
    from contextlib import ExitStack, closing

    from evr1_core.evaluate.filter import pass_rates, write_rates
    from evr1_core.evaluate.pipeline import evaluate, unique
    from evr1_core.evaluate.results import ResultStore
    from evr1_core.evaluate.settings import excluding, model_hash, sampling, settings
    from evr1_core.policy.load import load_adapter
    from evr1_core.record.console import Console
    from evr1_core.record.files import rows as stored
    from evr1_core.rollout.engine import choose_engine, open_engine
    from evr1_core.rollout.setup import choose_device, engine_context, model_name, open_builder, open_store
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.score import check_judge, check_rewards

    samples, n = rows.samples, config.evaluate.n
    unique(samples)
    check_rewards(config.rewards)
    check_judge(config.rewards, samples)
    name, device = model_name(config), choose_device(config.model.device)
    adapter, spec = load_adapter(name, config.model.chat), choose_engine(config.rollout.engine, device)
    what = {"filter": sorted(path.name for path in files)}
    identity = settings(config, weights=model_hash(adapter.directory), engine=spec.name, what=what)
    folder = output.with_suffix(".rollouts")
    with ExitStack() as stack:
        results = stack.enter_context(closing(ResultStore(folder, identity, fresh=fresh)))
        if results.missing(samples, n):  # else the answers are all there, and no model is needed
            store = stack.enter_context(closing(open_store(config)))
            builder = open_builder(excluding(config), adapter, store, "evaluate")
            pool = stack.enter_context(closing(ScoringPool(config.rewards)))
            context = engine_context(config, adapter, samples, device, max_tokens=config.evaluate.max_tokens)
            engine = stack.enter_context(closing(open_engine(spec.name, config.rollout.options, context)))
            console = stack.enter_context(closing(Console("filter", len(samples))))
            about = {"name": name, **what}
            evaluate(engine, builder, pool, samples, sampling(config), results, None, lambda done, _: console.advance(done), about=about)
        prefills = {row["id"]: row.get("prefill", "") for row in stored(results.path)}
        rates = pass_rates(results.records(samples, n), threshold, prefills)
        write_rates(folder / "pass_rates.jsonl", rates)
    return rates, dict(Counter(exclusion.reason for exclusion in rows.exclusions))


def _print(rates: list[PassRate], excluded: dict[str, int]) -> None:
    """The histogram of the pass rates, by problem type."""
    from evr1_cli.listing import aligned
    from evr1_core.evaluate.filter import BINS, histogram

    found = histogram(rates)
    columns = [*BINS, "no rate"]
    total = ["all", *(str(sum(row[column] for row in found.values())) for column in columns)]
    table = [["pass rate", *columns], *([name, *(str(row[column]) for column in columns)] for name, row in found.items())]
    for line in aligned([*table, total] if len(found) > 1 else table):
        typer.echo(line)
    if excluded:
        typer.echo(f"left out: {', '.join(f'{count} {reason}' for reason, count in excluded.items())}")

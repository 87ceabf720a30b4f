"""`evr1 cache build` and `evr1 cache stat`: the frame cache."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.errors import MediaError
    from evr1_core.media.store import MediaStore
    from evr1_core.types import Budget, MediaRef, PatchFactors

app = group("The frame cache: fill it, look at it.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Directory = Annotated[Path | None, typer.Option("--cache-dir", help="Folder of the cache; else media.cache_dir.")]


@app.command()
def build(
    data: Annotated[list[Path], typer.Argument(metavar="DATA...", help="JSON, JSONL, Parquet or CSV files.")],
    config: Annotated[list[Path] | None, typer.Option("--config", help="YAML file of the run; may be given several times.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For example media.train.video.fps=1.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: it gives the multiples that sides are rounded to.")] = None,
    factor: Annotated[int | None, typer.Option(min=1, help="Those multiples themselves, instead of a model.")] = None,
    phase: Annotated[str, typer.Option(help="Whose budget: train or evaluate.")] = "train",
    cache_dir: Directory = None,
    media_root: Annotated[Path | None, typer.Option(help="Folder that relative media paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first rows.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Decodes at the same time.")] = 2,
    json: Json = False,
) -> None:
    """Decode every medium of the data once and store its frames. What is there already stays. Exit code 1 when a file is bad."""
    from evr1_cli.listing import print_json
    from evr1_core.config.load import Flag, load
    from evr1_core.data.rows import read_samples
    from evr1_core.errors import RequestError
    from evr1_core.media.store import MediaStore

    flags = {
        "model.path": Flag(model, "--model"),
        "media.cache_dir": Flag(str(cache_dir) if cache_dir else None, "--cache-dir"),
        "data.media_root": Flag(str(media_root) if media_root else None, "--media-root"),
    }
    run = load(config or [], override or [], flags).config
    if phase not in ("train", "evaluate"):
        raise RequestError(f"--phase {phase}: train or evaluate")
    budget = (run.media.train if phase == "train" else run.media.evaluate).budget()
    factors = _factors(run, factor)
    rows = read_samples(data, run.data.media_root, "exclude", limit, check_media=False)
    refs = list(dict.fromkeys(ref for sample in rows.samples for ref in sample.media))
    store = MediaStore(run.media.cache_dir, "auto", run.media.deadline)
    failed = _fill(store, refs, budget, factors, workers)
    report = {
        "media": len(refs), **store.counters.as_dict(), "failed": len(failed), "bad_rows": len(rows.exclusions),
        "cache_dir": str(store.cache_dir),
        "failures": [{"path": ref.path, "code": error.code, "reason": error.reason} for ref, error in failed],
    }  # fmt: skip
    if json:
        print_json(report)
    else:
        for _, error in failed:
            typer.echo(str(error))
        typer.echo(_summary(report))
    if failed or store.counters.store_failed:
        raise typer.Exit(1)


@app.command()
def stat(cache_dir: Directory = None, json: Json = False) -> None:
    """Count the entries of a frame cache, by kind and by the decoder that made them."""
    from evr1_cli.listing import print_json
    from evr1_core.media.cache import FrameCache
    from evr1_core.media.entry import read_entry
    from evr1_core.media.store import default_cache_dir

    cache = FrameCache(cache_dir or default_cache_dir())
    kinds: Counter[str] = Counter()
    decoders: Counter[str] = Counter()
    total, invalid = 0, 0
    for path in cache.entries():
        total += path.stat().st_size
        try:
            with open(path, "rb") as file:
                fields = read_entry(file).clip
        except (OSError, ValueError):
            invalid += 1
            continue
        kinds[fields["kind"]] += 1
        decoders[fields["decoder"]] += 1
    report: dict[str, Any] = {
        "cache_dir": str(cache.directory), "entries": kinds.total() + invalid, "bytes": total, "invalid": invalid,
        "kinds": dict(kinds), "decoders": dict(decoders), "unfinished": len(list(cache.directory.glob("*/.writing-*.tmp"))),
    }  # fmt: skip
    if json:
        print_json(report)
        return
    typer.echo(
        f"{report['cache_dir']}: {report['entries']} entries, {total / 2**20:.1f} MiB, {invalid} invalid, {report['unfinished']} unfinished"
    )
    for name, count in [*kinds.most_common(), *decoders.most_common()]:
        typer.echo(f"  {count:8}  {name}")


def _factors(run: RunConfig, factor: int | None) -> PatchFactors:
    from evr1_core.errors import RequestError
    from evr1_core.types import PatchFactors

    if factor is not None:
        return PatchFactors(factor)
    if run.model.path is None:
        raise RequestError("frames are rounded to multiples that the model family gives: add --model NAME, or --factor N")
    from evr1_core.policy.load import load_adapter

    return load_adapter(run.model.path).factors


def _fill(
    store: MediaStore, refs: Sequence[MediaRef], budget: Budget, factors: PatchFactors, workers: int
) -> list[tuple[MediaRef, MediaError]]:
    from evr1_core.errors import MediaError

    failed: list[tuple[MediaRef, MediaError]] = []
    began = shown = time.monotonic()
    step = 8 * workers
    for first in range(0, len(refs), step):
        part = refs[first : first + step]
        found = store.load_many(part, budget, factors, workers)
        failed += [(ref, clip) for ref, clip in zip(part, found, strict=True) if isinstance(clip, MediaError)]
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            done = first + len(part)
            print(f"{done} of {len(refs)} media, {len(failed)} failed, {done / (shown - began):.1f}/s", file=sys.stderr, flush=True)
    return failed


def _summary(report: dict[str, Any]) -> str:
    return (
        f"{report['media']} media: {report['stored']} stored ({report['bytes'] / 2**20:.1f} MiB), {report['hits']} there already, "
        f"{report['failed']} failed, {report['store_failed']} not stored; {report['bad_rows']} bad rows left out\n{report['cache_dir']}"
    )

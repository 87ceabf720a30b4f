"""`evr1 cache build`, `stat`, `verify` and `prune`: the frame cache."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.media.build import Medium, Report, Survey
    from evr1_core.media.crew import Failure, Progress
    from evr1_core.media.store import MediaStore
    from evr1_core.types import PatchFactors, Sample

app = group("The frame cache: fill it, look at it, check it, make room.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Directory = Annotated[
    Path | None, typer.Option("--cache-dir", help="Folder of the cache; else media.cache_dir of --config, else the default.")
]
Workers = Annotated[int, typer.Option(min=1, help="Files at the same time.")]
Config = Annotated[list[Path] | None, typer.Option("--config", help="YAML file of the run; may be given several times.")]

INTERRUPTED = 130
"""The exit code that a shell gives to Ctrl-C."""


@app.command()
def build(
    data: Annotated[list[Path], typer.Argument(metavar="DATA...", help="JSON, JSONL, Parquet or CSV files.")],
    config: Config = None,
    override: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For example media.train.video.fps=1.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: it gives the multiples that sides are rounded to.")] = None,
    factor: Annotated[int | None, typer.Option(min=1, help="Those multiples themselves, instead of a model.")] = None,
    phase: Annotated[str, typer.Option(help="Whose budget: train or evaluate.")] = "train",
    cache_dir: Directory = None,
    media_root: Annotated[Path | None, typer.Option(help="Folder that relative media paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first rows.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Decoding processes.")] = 2,
    max_bad: Annotated[str, typer.Option(help="Bad media that are no failure: a count, or a share such as 0.05.")] = "0",
    report_file: Annotated[Path | None, typer.Option("--report", help="JSON file for every failure.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Begin even where the estimate exceeds the free space.")] = False,
    json: Json = False,
) -> None:
    """Decode every medium of the data once and store its frames. What is there already stays, so a build can be interrupted and repeated.

    Exit code 1 when more media are bad than --max-bad allows or frames can't be written, 130 after Ctrl-C.
    """
    from evr1_cli.listing import print_json
    from evr1_core.config.load import Flag, load
    from evr1_core.data.rows import read_samples
    from evr1_core.errors import RequestError
    from evr1_core.media.build import fill, survey
    from evr1_core.media.store import MediaStore

    flags = {
        "model.path": Flag(model, "--model"),
        "media.cache_dir": Flag(str(cache_dir) if cache_dir else None, "--cache-dir"),
        "data.media_root": Flag(str(media_root) if media_root else None, "--media-root"),
    }
    run = load(config or [], override or [], flags).config
    if phase not in ("train", "evaluate"):
        raise RequestError(f"--phase {phase}: train or evaluate")
    allowed = _max_bad(max_bad)
    factors = _factors(run, factor)
    rows = read_samples(data, run.data.media_root, "exclude", limit, check_media=False)
    store = MediaStore(run.media.cache_dir, "auto", run.media.deadline, tolerate=run.media.tolerate, codec=run.media.codec)
    media = _media(run, rows.samples, phase, store)
    with _Line() as line:
        found = survey(store, media, factors, workers, line.show)
        if not found.interrupted:
            _check_space(store, found, factors, workers, force, line)
        report = fill(store, found, factors, workers, line.show)
    printed = {**asdict(report), "failed": len(report.failures), "bad_rows": len(rows.exclusions), "cache_dir": str(store.cache_dir)}
    if report_file is not None:
        report_file.write_text(_as_json([asdict(failure) for failure in report.failures]) + "\n", encoding="utf-8")
    if json:
        print_json(printed)
    else:
        _print_failures(report.failures)
        typer.echo(_summary(report, len(rows.exclusions), store.cache_dir))
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    if report.not_stored or len(report.failures) > allowed(report.media):
        raise typer.Exit(1)


@app.command()
def stat(cache_dir: Directory = None, config: Config = None, json: Json = False) -> None:
    """Count the entries: by kind, codec and the decoder that made them, with their bytes and their last use."""
    from evr1_cli.listing import print_json
    from evr1_core.media.upkeep import contents

    directory = _directory(cache_dir, config)
    found = contents(directory)
    if json:
        print_json({"cache_dir": str(directory), **asdict(found)})
        return
    typer.echo(f"{directory}: {found.entries} entries, {_size(found.bytes)}, {found.unreadable} unreadable")
    if found.oldest_use is not None and found.newest_use is not None:
        typer.echo(f"  last used between {_day(found.oldest_use)} and {_day(found.newest_use)}")
    typer.echo(f"  {found.unfinished} unfinished files ({_size(found.unfinished_bytes)}), {found.hashes} content hashes")
    for counts in (found.kinds, found.codecs, found.decoders):
        for name, count in Counter(counts).most_common():
            typer.echo(f"  {count:8}  {name}")


@app.command()
def verify(
    cache_dir: Directory = None,
    config: Config = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the bad entries: they are decoded again when needed.")] = False,
    workers: Workers = 2,
    json: Json = False,
) -> None:
    """Read every entry to its end and compare it with its checksum. Exit code 1 when one is bad."""
    from evr1_cli.listing import print_json
    from evr1_core.media.upkeep import verify

    directory = _directory(cache_dir, config)
    with _Line() as line:
        found = verify(directory, workers, delete, line.show)
    if json:
        print_json({"cache_dir": str(directory), **asdict(found)})
    else:
        for failure in found.bad:
            typer.echo(f"{failure.path}: {failure.reason}")
        removed = " and removed" if delete and found.bad else ""
        typer.echo(f"{directory}: {found.entries} entries read, {_size(found.bytes)}, {len(found.bad)} bad{removed}")
    if found.bad or found.interrupted:
        raise typer.Exit(INTERRUPTED if found.interrupted else 1)


@app.command()
def prune(
    cache_dir: Directory = None,
    config: Config = None,
    max_size: Annotated[
        str | None, typer.Option(help="Keep at most so much, for example 50GB or 2GiB; least recently used go first.")
    ] = None,
    unused: Annotated[float | None, typer.Option(metavar="DAYS", min=0, help="Remove what was not used for so many days.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    json: Json = False,
) -> None:
    """Make room: remove old entries, and what killed writers left. Runs that read the cache go on undisturbed."""
    from evr1_cli.listing import print_json
    from evr1_core.media.upkeep import parse_size, prune

    directory = _directory(cache_dir, config)
    done = prune(directory, None if max_size is None else parse_size(max_size), unused, dry_run)
    if json:
        print_json({"cache_dir": str(directory), "dry_run": dry_run, **asdict(done)})
        return
    verb = "would remove" if dry_run else "removed"
    typer.echo(f"{verb} {done.entries} entries ({_size(done.bytes)}), {done.unfinished} unfinished files, {done.hashes} content hashes")
    typer.echo(f"{directory}: {done.kept} entries stay, {_size(done.kept_bytes)}")


class _Line:
    """The progress of a command on stderr: a bar on a terminal, else a line every few seconds."""

    EVERY = 5.0
    LONG = 5.0
    """Seconds after which a file that is worked on is named."""
    WORDS = {"look": "looking at files", "estimate": "reading headers", "decode": "decoding", "verify": "reading entries"}

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown = time.monotonic()
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Line:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"),
                                 console=Console(stderr=True), transient=True)  # fmt: skip
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        text = self._text(progress)
        if self._bar is not None:
            task = self._tasks.setdefault(progress.phase, None)
            if task is None:
                task = self._tasks[progress.phase] = self._bar.add_task(self.WORDS[progress.phase], total=progress.total, text="")
            self._bar.update(task, completed=progress.done, text=text)
        elif time.monotonic() - self._shown > self.EVERY:
            self._shown = time.monotonic()
            print(f"{self.WORDS[progress.phase]}: {text}", file=sys.stderr, flush=True)

    def _text(self, progress: Progress) -> str:
        parts = [f"{progress.done} of {progress.total}", f"{progress.rate:.1f}/s"]
        if progress.bytes:
            parts.append(_size(progress.bytes))
        if progress.failed:
            parts.append(f"{progress.failed} bad")
        if progress.seconds_left is not None:
            parts.append(f"{_duration(progress.seconds_left)} left")
        slowest = progress.slowest()
        if slowest is not None and slowest[1] > self.LONG:
            parts.append(f"for {_duration(slowest[1])} at {slowest[0]}")
        return ", ".join(parts)


def _media(run: RunConfig, samples: Sequence[Sample], phase: str, store: MediaStore) -> list[Medium]:
    """Every medium with its budget: that of the phase, or the smaller one that a run would give the media of a row that is too long."""
    budget = (run.media.train if phase == "train" else run.media.evaluate).budget()
    if run.data.overlong != "shrink" or run.model.path is None:
        return [(ref, budget) for sample in samples for ref in sample.media]
    from evr1_core.policy.load import load_adapter
    from evr1_core.rollout.setup import open_builder
    from evr1_core.train.planning import plan_with_progress

    builder = open_builder(run, load_adapter(run.model.path, run.model.chat), store, "train" if phase == "train" else "evaluate")
    kept = [row.reason != "too_long" for row in plan_with_progress(samples, builder, store).rows]
    return [(ref, builder.budget_of(sample)) for sample, keep in zip(samples, kept, strict=True) if keep for ref in sample.media]


def _check_space(store: MediaStore, found: Survey, factors: PatchFactors, workers: int, force: bool, line: _Line) -> None:
    from evr1_core.errors import RequestError
    from evr1_core.media.build import estimate

    needed = estimate(store, found, factors, workers, line.show)
    numbers = f"{len(found.missing)} entries will take about {_size(needed.bytes)}; {store.cache_dir} has {_size(needed.free)} free"
    if not needed.fits and not force:
        raise RequestError(f"{numbers}. Free space, give another folder with --cache-dir, store less with --set media.codec=jpeg "
                           "or a smaller budget, or begin all the same with --force")  # fmt: skip
    if found.missing:
        print(f"{numbers} ({needed.sampled} headers read)", file=sys.stderr, flush=True)


def _directory(cache_dir: Path | None, config: list[Path] | None) -> Path:
    from evr1_core.errors import RequestError
    from evr1_core.media.store import default_cache_dir

    if cache_dir is None and config:
        from evr1_core.config.load import load

        cache_dir = load(config, [], {}).config.media.cache_dir
    directory = cache_dir or default_cache_dir()
    if not directory.is_dir():
        raise RequestError(f"{directory}: no such folder; `evr1 cache build` makes one, --cache-dir names another")
    return directory


def _max_bad(text: str) -> Any:
    """How many of n media may be bad: a count, or a share below 1."""
    from evr1_core.errors import RequestError

    try:
        number = float(text)
        if text.isdecimal():
            return lambda media: int(text)
        if 0 <= number < 1:
            return lambda media: number * media
    except ValueError:
        pass
    raise RequestError(f"--max-bad {text}: a count (0, 12) or a share below 1 (0.05)")


def _factors(run: RunConfig, factor: int | None) -> PatchFactors:
    from evr1_core.errors import RequestError
    from evr1_core.types import PatchFactors

    if factor is not None:
        return PatchFactors(factor)
    if run.model.path is None:
        raise RequestError("frames are rounded to multiples that the model family gives: add --model NAME, or --factor N")
    from evr1_core.policy.load import load_adapter

    return load_adapter(run.model.path).factors


def _print_failures(failures: tuple[Failure, ...]) -> None:
    """Bad media with their reasons, those of one code together."""
    for code, count in Counter(failure.code for failure in failures).most_common():
        typer.echo(f"{code}: {count}")
        for failure in failures:
            if failure.code == code:
                typer.echo(f"  {failure.path}: {failure.reason}")


def _summary(report: Report, bad_rows: int, cache_dir: Path) -> str:
    parts = [f"{report.stored} stored ({_size(report.bytes)}) in {_duration(report.seconds)}", f"{report.already} there already",
             f"{report.duplicates} duplicates", f"{len(report.failures)} bad"]  # fmt: skip
    if report.not_stored:
        parts.append(f"{report.not_stored} could not be written: the build stopped")
    if report.left:
        parts.append(f"{report.left} left: run the same command again")
    if bad_rows:
        parts.append(f"{bad_rows} bad rows left out (`evr1 data check` shows them)")
    return f"{'interrupted; ' if report.interrupted else ''}{report.media} media: {', '.join(parts)}\n{cache_dir}"


def _as_json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))

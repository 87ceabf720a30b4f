"""`evr1 rewards score`: score a file of responses, as training and evaluation would, without a model.

The file is read twice: once to check every line and to count, once to score. Only a few thousand responses are in memory at a time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO

import typer

if TYPE_CHECKING:
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.worker import Item
    from evr1_core.types import Sample, Score

CHUNK_RESPONSES = 512
CHUNK_CHARS = 16_000_000
NAMED = 20
"""Ids of one kind that are printed; --json has them all."""


def command(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The rows: JSON, JSONL, Parquet or CSV.")],
    responses: Annotated[Path, typer.Argument(metavar="RESPONSES", help='JSON lines: {"id": ..., "response": text or list of texts}.')],
    config: Annotated[list[Path] | None, typer.Option("--config", help="YAML file of the run; may be given several times.")] = None,
    override: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="For example rewards.require_tag=true.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write one JSON line per response there.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="rewards.workers: processes that score.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Score responses against the rows of a data file, and print a line per problem type.

    Exit code 1 when a response has no row, a row no response, or a response no number; 2 for a wrong request.
    """
    from evr1_cli.listing import print_json
    from evr1_core import plugins
    from evr1_core.config.load import Flag, load
    from evr1_core.data.rows import read_samples
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.score import check_judge, check_rewards

    run = load(config or [], override or [], {"rewards.workers": Flag(workers, "--workers")}).config
    check_rewards(run.rewards)
    rows = read_samples(
        data,
        run.data.media_root,
        limit=run.data.limit,
        known_problem_type=lambda name: plugins.serves(name, run.rewards.use),
        check_media=False,
        advice="Mend them, or take them out of the file.",
    )
    samples = {sample.id: sample for sample in rows.samples}
    survey = _survey(responses, samples)
    check_judge(run.rewards, [samples[name] for name in survey.per_id if name in samples])
    target = _replacing(output) if output else nullcontext()
    tallies: dict[str, _Tally] = {}
    with target as file, closing(_progress(survey.scorable)) as progress, ScoringPool(run.rewards) as pool:
        for number, (given, score) in enumerate(_scored(pool, responses, samples), 1):
            tallies.setdefault(given.sample.problem_type, _Tally()).add(score)
            if file is not None:
                file.write(_line(given, score))
            progress.advance(number)
        counters = pool.counters()
    found = _report(samples, survey, tallies, counters)
    print_json(found) if json else _print(found)
    total = found["all"]
    if total["failed"] - total["failed_by_answer"] or total["invalid_gold"] or found["without_row"] or found["without_response"]:
        raise typer.Exit(1)


class _Response(NamedTuple):
    sample: Sample
    index: int
    """Number of the response among those of its row, from 0."""
    item: Item


@dataclass(frozen=True)
class _Survey:
    """What stands in the file of responses."""

    per_id: Mapping[str, int]
    """Responses of every id, in the order of the file."""
    lines: Mapping[str, int]
    """Lines of every id."""
    scorable: int
    """Responses that have a row."""


@dataclass
class _Tally:
    """Outcomes of one problem type."""

    responses: int = 0
    scored: int = 0
    unparsed: int = 0
    failed: int = 0
    failed_by_answer: int = 0
    """Those of `failed` that the answer brought about: they count as wrong."""
    invalid_gold: int = 0
    counted: int = 0
    """Responses that the mean accuracy is of."""
    accuracy: float = 0.0
    with_format: int = 0
    format: float = 0.0

    def add(self, score: Score) -> None:
        from evr1_core.scoring.score import caused_by_answer, evaluation_accuracy

        self.responses += 1
        setattr(self, score.status, getattr(self, score.status) + 1)
        self.failed_by_answer += caused_by_answer(score)
        accuracy = evaluation_accuracy(score)
        if accuracy is not None:
            self.counted += 1
            self.accuracy += accuracy
        if score.format is not None:
            self.with_format += 1
            self.format += score.format

    def merge(self, other: _Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def row(self) -> dict[str, Any]:
        """Counts and means; a mean of nothing is None."""
        counts = {name: getattr(self, name) for name in ("responses", "scored", "unparsed", "failed", "failed_by_answer", "invalid_gold")}
        accuracy = self.accuracy / self.counted if self.counted else None
        return {**counts, "accuracy": accuracy, "format": self.format / self.with_format if self.with_format else None}


def _survey(path: Path, samples: Mapping[str, Sample]) -> _Survey:
    from evr1_core.errors import RequestError

    per_id: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for name, items in _lines(path):
        per_id[name] += len(items)
        lines[name] += 1
    if not lines:
        raise RequestError(f"{path}: holds no response")
    return _Survey(per_id, lines, sum(count for name, count in per_id.items() if name in samples))


def _lines(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(id, its responses with what is known of each) of every line. Raises RequestError that names file, line and field.

    Not read as data files are: what a model wrote may hold half of a surrogate pair.
    """
    import json

    from evr1_core.errors import RequestError

    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            place = f"{path}:{number}"
            try:
                values = json.loads(line.decode("utf-8-sig"))
            except (ValueError, RecursionError) as fault:
                raise RequestError(f"{place}: not JSON: {fault}; every line is one object") from None
            if not isinstance(values, dict):
                raise RequestError(f"{place}: must be a JSON object, found {type(values).__name__}")
            yield _read(values, place)


def _read(values: Mapping[str, Any], place: str) -> tuple[str, list[dict[str, Any]]]:
    from evr1_core.errors import RequestError

    name = values.get("id")
    if isinstance(name, bool) or not isinstance(name, (str, int)) or not str(name).strip():
        raise RequestError(f"{place}: id: must be the id of a row, found {name!r}")
    if "response" not in values:
        raise RequestError(f"{place}: response: is missing; this line has {', '.join(sorted(values))}")
    texts = values["response"] if isinstance(values["response"], list) else [values["response"]]
    found: list[dict[str, Any]] = [{"response": text} for text in texts]
    for key, kinds in _KINDS.items():
        given = values.get(key)
        listed = given if isinstance(given, list) else [given] * len(texts)
        if len(listed) != len(texts):
            raise RequestError(f"{place}: {key}: has {len(listed)} entries for {len(texts)} responses")
        for one, value in zip(found, listed, strict=True):
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise RequestError(f"{place}: {key}: must be {'text' if kinds is str else 'a whole number'}, found {value!r:.60}")
            if value is not None:
                one[key] = value
    return str(name).strip(), found


_KINDS: Mapping[str, type] = {"response": str, "prefill": str, "finish_reason": str, "response_tokens": int}


def _responses(path: Path, samples: Mapping[str, Sample]) -> Iterator[_Response]:
    """The responses that have a row, in the order of the file."""
    from evr1_core.scoring.worker import Item

    seen: Counter[str] = Counter()
    for name, found in _lines(path):
        sample = samples.get(name)
        if sample is None:
            continue
        for one in found:
            yield _Response(sample, seen[name], Item(sample, **one))
            seen[name] += 1


def _scored(pool: ScoringPool, path: Path, samples: Mapping[str, Sample]) -> Iterator[tuple[_Response, Score]]:
    """Scores in the order of the file. Two chunks are under way, so that no worker waits at the end of one."""
    under_way: deque[tuple[list[_Response], Future[list[Score]]]] = deque()
    with ThreadPoolExecutor(2, thread_name_prefix="evr1-rewards-score") as threads, pool:  # closed first: waiting calls end
        for chunk in _chunks(_responses(path, samples)):
            under_way.append((chunk, threads.submit(pool.score, [one.item for one in chunk])))
            if len(under_way) > 1:
                done, future = under_way.popleft()
                yield from zip(done, future.result(), strict=True)
        for done, future in under_way:
            yield from zip(done, future.result(), strict=True)


def _chunks(responses: Iterator[_Response]) -> Iterator[list[_Response]]:
    chunk: list[_Response] = []
    chars = 0
    for one in responses:
        chunk.append(one)
        chars += len(one.item.response or "")
        if len(chunk) >= CHUNK_RESPONSES or chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


def _line(given: _Response, score: Score) -> str:
    from evr1_core.record.files import to_json
    from evr1_core.record.rollouts import score_row
    from evr1_core.scoring.score import SCORER_VERSION

    identity = {"id": given.sample.id, "index": given.index, "problem_type": given.sample.problem_type}
    return to_json({**identity, **score_row(score), "scorer_version": SCORER_VERSION}) + "\n"


@contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A file that takes its name when it is complete."""
    import os

    from evr1_core.record.files import sync

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        error.filename = str(path)  # a full disk names no file by itself
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _progress(total: int) -> Any:
    from evr1_core.record.console import Console

    return Console("rewards score", total)


def _report(samples: Mapping[str, Sample], survey: _Survey, tallies: Mapping[str, _Tally], counters: Mapping[str, float]) -> dict[str, Any]:
    from evr1_core.evaluate.pipeline import MAX_LEFT_OUT
    from evr1_core.scoring.score import SCORER_VERSION

    total = _Tally()
    for tally in tallies.values():
        total.merge(tally)
    row = total.row()
    left_out = total.responses - total.counted
    if left_out > MAX_LEFT_OUT * total.responses:
        row["accuracy"] = None
    return {
        "types": {name: tally.row() for name, tally in sorted(tallies.items())},
        "all": row,
        "left_out": left_out,
        "without_row": [name for name in survey.per_id if name not in samples],
        "without_response": [name for name in samples if not survey.per_id.get(name)],
        "repeated": [name for name, lines in survey.lines.items() if lines > 1],
        "scoring": dict(counters),
        "scorer_version": SCORER_VERSION,
    }


def _print(found: Mapping[str, Any]) -> None:
    from evr1_cli.listing import aligned

    rows = {**found["types"], "all": found["all"]}
    names = ("responses", "scored", "unparsed", "failed", "invalid_gold", "accuracy", "format")
    lines = [["problem type", *(name.replace("invalid_gold", "faulty gold") for name in names)]]
    lines += [[name, *(_cell(row[column]) for column in names)] for name, row in rows.items()]
    typer.echo("\n".join(aligned(lines)))
    if found["left_out"]:
        withheld = ": too many for a mean of all" if found["all"]["accuracy"] is None else ""
        typer.echo(f"{found['left_out']:,} responses have no number and are left out of the means{withheld}")
    _print_ids(found["without_row"], "ids of responses have no row")
    _print_ids(found["without_response"], "rows have no response")
    _print_ids(found["repeated"], "ids stand on several lines; each line is a further response of its row")


def _print_ids(names: Sequence[str], what: str) -> None:
    if names:
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        typer.echo(f"{len(names):,} {what}: {', '.join(names[:NAMED])}{more}")


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4f}"

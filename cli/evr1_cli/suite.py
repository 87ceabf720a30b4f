"""What `evr1 eval` does: check every benchmark before a model is loaded, answer them with one engine, one table at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evr1_core.errors import Evr1Error, RequestError

if TYPE_CHECKING:
    from evr1_core.config.load import Flag
    from evr1_core.config.models import RunConfig
    from evr1_core.evaluate.results import ResultStore
    from evr1_core.evaluate.suite import Wanted
    from evr1_core.media.store import MediaStore
    from evr1_core.policy.adapter import ModelAdapter
    from evr1_core.types import Sample


@dataclass(frozen=True)
class Request:
    """The command line."""

    arguments: list[str]
    flags: Mapping[str, Flag]
    benchmark: str | None = None
    root: Path | None = None
    variant: str | None = None
    prompt: str | None = None
    thinking: bool = False
    budget: str | None = None
    judge_later: bool = False
    output: Path | None = None
    limit: int | None = None
    fresh: bool = False
    retry: bool = False

    def place(self, wanted: Wanted) -> int:
        """Where a benchmark stands on the command line."""
        from evr1_core.evaluate.suite import read_names

        return read_names(self.benchmark, self.variant).index(wanted) if self.benchmark else 0

    def config(self, benchmark: str | None = None) -> RunConfig:
        """Files and budget, then dotted overrides, then flags: what was written out goes over what a name stands for."""
        from evr1_core.config.load import load, split_arguments
        from evr1_core.evaluate.suite import budget_flags

        files, overrides = split_arguments(self.arguments)
        named = budget_flags(self.budget, benchmark) if self.budget else {}
        written = {text.partition("=")[0] for text in overrides} | set(self.flags)
        over = {key: flag for key, flag in named.items() if not any(key == other or key.startswith(f"{other}.") for other in written)}
        return load(files, overrides, {**over, **self.flags}).config


@dataclass
class Job:
    """One evaluation that is ready to begin."""

    wanted: Wanted
    config: RunConfig
    samples: list[Sample]
    what: dict[str, Any]
    """Identity of the questions and of how they are asked."""
    benchmark: Any = None
    ask: Any = None
    folder: Path = Path()
    results: ResultStore | None = None
    left: int = 0
    """Questions that are not answered yet."""


def judge_flags(model: str | None, url: str | None) -> dict[str, Flag]:
    """The judge of the command line: an endpoint, or a model in this process. Raises RequestError for a url alone."""
    from evr1_core.config.load import Flag

    if model is None and url is None:
        return {}
    if model is None:
        raise RequestError("--judge-url needs --judge-model, the name of the model there")
    place = Flag(url, "--judge-url") if url else Flag("auto", "--judge-model")
    return {"rewards.judge.model": Flag(model, "--judge-model"), "rewards.judge.url" if url else "rewards.judge.engine.name": place}


def run_suite(request: Request, as_json: bool = False) -> None:
    """Evaluate everything that was asked for. Raises Evr1Error at the end where something could not be evaluated."""
    from evr1_core.evaluate.suite import failed_row, row, write_tables
    from evr1_core.rollout.setup import model_name

    jobs, failures = prepare(request)
    names = sorted({*failures, *(job.wanted for job in jobs)}, key=request.place)
    several = len(jobs) + len(failures) > 1
    name = model_name(request.config())
    base = request.output or Path("evaluations") / Path(name).name
    summaries: dict[str, dict[str, Any]] = {}
    stop: Evr1Error | None = None
    for job in jobs:
        job.folder = base if request.output and not several else base / job.wanted.folder
    with ExitStack() as stack:
        for job, found in answer(stack, jobs, name, request):
            if isinstance(found, Evr1Error):
                failures[job.wanted] = found
                stop = found if is_stop(found) else stop
                continue
            summaries[job.wanted.folder] = found
            if not as_json:
                tell(job, found, several)
    rows = [
        row(one.name, one.variant, summaries[one.folder]) if one.folder in summaries else failed_row(one, str(failures[one]))
        for one in names
        if one.folder in summaries or one in failures
    ]
    if summaries:
        shown = {
            "model": name,
            "budget": request.budget,
            "prompt": request.prompt,
            "thinking": request.thinking or None,
            "limit": request.limit,
        }
        paths = write_tables(base if several else jobs[0].folder, rows, shown, summaries)
        conclude(rows, paths, several, as_json)
    if stop is not None:
        raise stop
    if failures:
        raise gathered(failures, several)


def is_stop(error: Evr1Error) -> bool:
    from evr1_core.evaluate.pipeline import Stopped

    return isinstance(error, Stopped)


def gathered(failures: Mapping[Wanted, Evr1Error], several: bool) -> Evr1Error:
    """The one failure where nothing else was asked for; of several, all in lines."""
    found = list(failures.items())
    if not several:
        return found[0][1]
    return Evr1Error("\n".join([f"{len(found)} could not be evaluated:", *(f"  {wanted.folder}: {error}" for wanted, error in found)]))


def conclude(rows: list[dict[str, Any]], paths: list[Path], several: bool, as_json: bool) -> None:
    """The table of the suite, and where it is."""
    from evr1_cli.listing import print_json, show_rows
    from evr1_core.evaluate.suite import shown

    if as_json:
        print_json(rows)
        return
    if several:
        show_rows(shown(rows), False)
    typer.echo(", ".join(map(str, paths)))


def tell(job: Job, summary: Mapping[str, Any], several: bool) -> None:
    """What a person reads of one evaluation."""
    from evr1_core.evaluate.pipeline import line
    from evr1_core.evaluate.suite import interval

    for sign in summary.get("degenerate", []):
        typer.echo(f"WARNING, this run may say nothing about the model: {sign['text']}")
    typer.echo(f"{job.wanted.folder}: {line(dict(summary))}" if several else line(dict(summary)))
    for name, found in (summary.get("official") or {}).items():
        typer.echo(f"{name}: {interval(found['value'], found['low'], found['high'])}, n = {found['n']}")
    if summary["headline"]:  # without one, the line itself holds the notes
        for note in summary["notes"]:
            typer.echo(f"note: {note}")
    typer.echo(f"{job.folder}/summary.json, {job.folder}/results.jsonl")


def prepare(request: Request) -> tuple[list[Job], dict[Wanted, Evr1Error]]:
    """Everything that can be known without a model: releases, questions, wordings, rewards, judge.

    What fails keeps no other from its evaluation; alone, it is raised.
    """
    from evr1_core.evaluate.suite import read_names

    if request.benchmark is None:
        return [_data_job(request)], {}
    names = read_names(request.benchmark, request.variant)
    jobs: list[Job] = []
    failures: dict[Wanted, Evr1Error] = {}
    for wanted in names:
        try:
            jobs.append(_benchmark_job(request, wanted, len(names) == 1))
        except Evr1Error as error:
            if len(names) == 1:
                raise
            failures[wanted] = error
    if not jobs:
        raise gathered(failures, True)
    return jobs, failures


def _data_job(request: Request) -> Job:
    from evr1_cli.eval import read_questions
    from evr1_core.evaluate.settings import questions
    from evr1_core.evaluate.suite import Wanted

    config = request.config()
    samples = read_questions(config)
    paths = config.data.validate_on
    wanted = Wanted("-".join(path.stem for path in paths))
    what = {"data": sorted(path.name for path in paths), **questions(samples)}
    return _checked(request, Job(wanted, config, samples, what), ", ".join(map(str, paths)))


def _benchmark_job(request: Request, wanted: Wanted, alone: bool) -> Job:
    from evr1_core import plugins
    from evr1_core.evaluate.settings import questions
    from evr1_core.evaluate.suite import root_of

    spec = plugins.benchmark(wanted.name)
    adapter: Any = plugins.build(spec)
    root = root_of(wanted, request.root, alone, adapter)
    config = request.config(wanted.name)
    config = config.model_copy(
        update={"data": config.data.model_copy(update={"template": config.data.template or getattr(adapter, "template", None)})}
    )
    variant = wanted.variant or next(iter(spec.variants), None)
    what: dict[str, Any] = {"benchmark": wanted.name, "variant": variant}
    prompt, ask = wording(adapter, wanted.name, request.prompt, request.thinking)
    if prompt is not None:
        what |= {"prompt": prompt, "thinking": request.thinking}
    samples = adapter.samples(root, variant)
    return _checked(request, Job(wanted, config, samples, what | questions(samples, ask), adapter, ask), str(root))


def wording(adapter: Any, name: str, prompt: str | None, thinking: bool) -> tuple[str | None, Any]:
    """(name of the wording, how a sample is asked); (None, None) for a benchmark that leaves it to the prompt templates.

    Raises RequestError for a wording that it doesn't know.
    """
    from evr1_core.errors import nearest

    known = getattr(adapter, "prompts", ())
    if not hasattr(adapter, "wording") or not known:
        if prompt is not None or thinking:
            raise RequestError(f"benchmark {name!r} has no wordings of its own: leave out --prompt and --thinking")
        return None, None
    chosen = prompt or known[0]
    if chosen not in known:
        raise RequestError(f"benchmark {name!r} has no prompt {chosen!r}{nearest(chosen, known)}")
    return chosen, lambda sample, frame_times: adapter.wording(sample, chosen, thinking, frame_times)


def _checked(request: Request, job: Job, place: str) -> Job:
    from evr1_core.scoring.score import check_judge, check_rewards

    if not job.samples:
        raise RequestError(f"no questions in {place}")
    check_rewards(job.config.rewards)
    job.samples = job.samples[: request.limit] if request.limit else job.samples
    if not request.judge_later:
        try:
            check_judge(job.config.rewards, job.samples)
        except RequestError as error:
            raise RequestError(f"{error}; --judge-model gives one, --judge-later leaves these to `evr1 judge`") from error
    return job


Outcome = tuple[Job, "dict[str, Any] | Evr1Error"]


def answer(stack: ExitStack, jobs: list[Job], name: str, request: Request) -> Iterator[Outcome]:
    """Each job with its summary, or with what kept it from one. Nothing is loaded where everything is answered already."""
    from evr1_core.evaluate.settings import excluding, limits, model_hash, sampling
    from evr1_core.policy.load import load_adapter
    from evr1_core.record.console import Console
    from evr1_core.rollout.engine import choose_engine
    from evr1_core.rollout.setup import choose_device, open_builder, open_store
    from evr1_core.scoring.pool import ScoringPool

    first = jobs[0].config
    device = choose_device(first.model.device)
    adapter = load_adapter(name, first.model.chat)
    spec, weights = choose_engine(first.rollout.engine, device), model_hash(adapter.directory)
    store = stack.enter_context(closing(open_store(first)))
    ready: list[Job] = []
    for job in jobs:
        try:
            _open_results(stack, job, weights, spec.name, request, store)
            ready.append(job)
        except Evr1Error as error:
            if len(jobs) == 1:
                raise
            yield job, error
    if not ready:
        return
    pool = stack.enter_context(closing(ScoringPool(first.rewards)))
    open_once = engine_opener(stack, ready, adapter, spec.name, device)
    for job in ready:
        from evr1_core.evaluate.pipeline import Stopped, evaluate

        assert job.results is not None
        builder = open_builder(excluding(job.config), adapter, store, "evaluate", job.ask)
        about = {"name": name, **job.what, "frames": str(store.cache_dir.absolute())}
        try:
            with closing(Console(job.wanted.folder, len(job.samples))) as console:

                def advance(done: int, _: int, console: Console = console) -> None:
                    console.advance(done)

                engine = open_once() if job.left else _NoEngine()
                _, summary = evaluate(
                    engine, builder, pool, job.samples, sampling(job.config), job.results, job.benchmark, advance, about, limits(job.config)
                )
            yield job, summary
        except Evr1Error as error:
            if len(jobs) == 1:
                raise
            yield job, error
            if isinstance(error, Stopped):
                return


def _open_results(stack: ExitStack, job: Job, weights: str, engine: str, request: Request, store: MediaStore) -> None:
    """Refuse other settings, other questions and other media before a model is loaded."""
    from evr1_core.evaluate.pipeline import unique
    from evr1_core.evaluate.results import ResultStore
    from evr1_core.evaluate.settings import settings

    unique(job.samples)
    identity = settings(job.config, weights=weights, engine=engine, what=job.what)
    job.results = stack.enter_context(closing(ResultStore(job.folder, identity, fresh=request.fresh, retry=request.retry)))
    job.left = len(job.results.missing(job.samples, job.config.evaluate.n))
    job.results.check_media(job.samples, lambda path: store.hashes.of(path)[0])


def engine_opener(stack: ExitStack, jobs: list[Job], adapter: ModelAdapter, name: str, device: str) -> Callable[[], Any]:
    """Opens one engine that is large enough for every job, when it is first needed."""
    from evr1_core.rollout.async_engine import open_async_engine
    from evr1_core.rollout.setup import engine_context

    opened: list[Any] = []

    def once() -> Any:
        if not opened:
            config = max((job.config for job in jobs), key=lambda config: config.data.max_prompt_tokens)
            samples = [sample for job in jobs for sample in job.samples]
            context = engine_context(config, adapter, samples, device, max_tokens=max(job.config.evaluate.max_tokens for job in jobs))
            opened.append(stack.enter_context(closing(open_async_engine(name, config.rollout.options, context, config.evaluate.engines))))
        return opened[0]

    return once


class _NoEngine:
    """Stands where every question is answered already."""

    width = 1

    async def answer(self, prompt: Any, sampling: Any) -> Any:
        raise Evr1Error("every question was answered, and yet one was asked")

    def close(self) -> None: ...

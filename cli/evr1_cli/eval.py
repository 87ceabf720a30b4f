"""`evr1 eval`: answer and score a benchmark or a data file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.types import Sample


def command(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: a preset, a directory or a repository id.")] = None,
    benchmark: Annotated[str | None, typer.Option("--benchmark", help="A benchmark; `evr1 benchmarks list`.")] = None,
    root: Annotated[Path | None, typer.Option("--root", help="Folder of the benchmark's official release.")] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="Split, track or input form of the benchmark.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="Data files instead; may be given several times.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="rollout.engine; `evr1 plugins list`.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="evaluate.n: answers per question.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="evaluate.temperature; 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="evaluate.max_tokens: longest answer.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Folder of the results; evaluations/WHAT/MODEL otherwise.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first questions.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; older results are moved aside.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Ask again what has no number: medium missing, engine or scorer failed.")] = False,
) -> None:
    """Answer and score a benchmark, or any data file.

    Each answer is written as it comes. The same command again does what is missing; with other settings it is refused.
    """
    from evr1_core.config.load import Flag, load, split_arguments
    from evr1_core.errors import RequestError

    given = {
        ("model.path", "--model"): model,
        ("rollout.engine", "--engine"): engine,
        ("evaluate.n", "--n"): n,
        ("evaluate.temperature", "--temperature"): temperature,
        ("evaluate.max_tokens", "--max-tokens"): max_tokens,
        ("data.validate_on", "--data"): [str(path) for path in data] if data else None,
    }
    flags = {key: Flag(value, flag) for (key, flag), value in given.items() if value is not None}
    config = load(*split_arguments(arguments or []), flags).config
    if benchmark and data:
        raise RequestError("give --benchmark or --data, not both")
    adapter: Any = None
    if benchmark:
        from evr1_core import plugins

        adapter = plugins.build(plugins.benchmark(benchmark))
        root = root or getattr(adapter, "root", None)
        if root is None:
            raise RequestError(f"--benchmark {benchmark} needs --root, the folder of its official release; see `evr1 benchmarks list`")
        samples, what = adapter.samples(root, variant), {"benchmark": benchmark, "variant": variant}
    else:
        samples, what = read_questions(config), {"data": sorted(path.name for path in config.data.validate_on)}
    samples = samples[:limit] if limit else samples
    if not samples:
        raise RequestError(f"no questions in {root or ', '.join(map(str, config.data.validate_on))}")
    run(config, samples, what, adapter, output, fresh, retry)


def read_questions(config: RunConfig) -> list[Sample]:
    """Rows of `data.validate_on`. Missing media are outcomes of their question, faulty rows an error."""
    from evr1_core import plugins
    from evr1_core.data.rows import read_samples
    from evr1_core.errors import RequestError

    if not config.data.validate_on:
        raise RequestError("nothing to evaluate: give --benchmark NAME or --data FILE")
    rows = read_samples(
        config.data.validate_on,
        media_root=config.data.media_root,
        bad_rows="error",
        advice="Mend them, or take them out of the file: an evaluation leaves no row out.",
        known_problem_type=lambda name: plugins.serves(name, config.rewards.use),
        check_media=False,
    )
    return rows.samples


def run(
    config: RunConfig, samples: list[Sample], what: dict[str, Any], benchmark: Any, output: Path | None, fresh: bool, retry: bool
) -> None:
    """Open everything, evaluate, print one line."""
    from contextlib import ExitStack, closing

    from evr1_core.evaluate.pipeline import evaluate, line
    from evr1_core.evaluate.results import ResultStore
    from evr1_core.evaluate.settings import excluding, model_hash, sampling, settings
    from evr1_core.policy.load import load_adapter
    from evr1_core.record.console import Console
    from evr1_core.rollout.engine import choose_engine, open_engine
    from evr1_core.rollout.setup import choose_device, engine_context, model_name, open_builder, open_store
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.score import check_judge, check_rewards

    check_rewards(config.rewards)
    check_judge(config.rewards, samples)
    name, device = model_name(config), choose_device(config.model.device)
    template = config.data.template or getattr(benchmark, "template", None)
    config = config.model_copy(update={"data": config.data.model_copy(update={"template": template})})
    adapter = load_adapter(name)
    spec = choose_engine(config.rollout.engine, device)
    identity = settings(config, weights=model_hash(adapter.directory), engine=spec.name, what=what)
    folder = output or Path("evaluations") / (what.get("benchmark") or "-".join(Path(file).stem for file in what["data"])) / Path(name).name
    with ExitStack() as stack:
        results = stack.enter_context(closing(ResultStore(folder, identity, fresh=fresh, retry=retry)))
        results.missing(samples, config.evaluate.n)  # refuse before a model is loaded
        store = stack.enter_context(closing(open_store(config)))
        builder = open_builder(excluding(config), adapter, store, "evaluate")
        pool = stack.enter_context(closing(ScoringPool(config.rewards)))
        context = engine_context(config, adapter, samples, device, max_tokens=config.evaluate.max_tokens)
        engine = stack.enter_context(closing(open_engine(spec.name, config.rollout.options, context)))
        console = stack.enter_context(closing(Console("eval", len(samples))))
        about = {"name": name, **what}
        _, summary = evaluate(
            engine, builder, pool, samples, sampling(config), results, benchmark, lambda done, _: console.advance(done), about=about
        )
    typer.echo(line(summary))
    if summary["headline"]:  # without one, the line itself holds the notes
        for note in summary["notes"]:
            typer.echo(f"note: {note}")
    typer.echo(f"{folder}/summary.json, {folder}/results.jsonl")

"""`evr1 eval`: answer and score benchmarks or data files, with one model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from evr1_core.config.models import RunConfig
    from evr1_core.types import Sample


def command(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="model.path: a preset, a directory or a repository id.")] = None,
    benchmark: Annotated[
        str | None, typer.Option("--benchmark", metavar="A,B:VARIANT,...", help="Benchmarks; `evr1 benchmarks list`.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", help="Folder with one release per benchmark, by its name; of a single one the release itself.")
    ] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="Split, track or input form, of benchmarks without their own.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="official, easyvideor1 or neutral; else its first.")] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="The wording that asks for reasoning.")] = False,
    budget: Annotated[str | None, typer.Option("--budget", help="Media budget by name; `evr1 plugins list --kind budget`.")] = None,
    data: Annotated[list[Path] | None, typer.Option("--data", help="Data files instead; may be given several times.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="rollout.engine; `evr1 plugins list`.")] = None,
    engines: Annotated[int | None, typer.Option("--engines", min=1, help="evaluate.engines: engines side by side.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="evaluate.n: answers per question.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="evaluate.temperature; 0 is greedy.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="evaluate.max_tokens: longest answer.")] = None,
    judge_model: Annotated[
        str | None, typer.Option("--judge-model", help="rewards.judge.model: at --judge-url, else a preset or directory in this process.")
    ] = None,
    judge_url: Annotated[str | None, typer.Option("--judge-url", help="rewards.judge.url: an OpenAI-compatible endpoint.")] = None,
    judge_later: Annotated[bool, typer.Option("--judge-later", help="Leave what needs a judge to `evr1 judge`.")] = False,
    output: Annotated[Path | None, typer.Option("--output", help="Folder of the results; evaluations/MODEL/WHAT otherwise.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first questions of each.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew; older results are moved aside.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Ask again what has no number: medium missing, engine or scorer failed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Answer and score benchmarks, or any data file, with one engine; one table at the end.

    Each answer is written as it comes. The same command again does what is missing; with other settings it is refused.
    A benchmark that can't be evaluated doesn't keep the others from it; the exit code is 1 then.
    """
    from evr1_cli.suite import Request, judge_flags, run_suite
    from evr1_core.config.load import Flag
    from evr1_core.errors import RequestError

    given = {
        ("model.path", "--model"): model,
        ("rollout.engine", "--engine"): engine,
        ("evaluate.engines", "--engines"): engines,
        ("evaluate.n", "--n"): n,
        ("evaluate.temperature", "--temperature"): temperature,
        ("evaluate.max_tokens", "--max-tokens"): max_tokens,
        ("data.validate_on", "--data"): [str(path) for path in data] if data else None,
    }
    flags = {key: Flag(value, flag) for (key, flag), value in given.items() if value is not None}
    if benchmark and data:
        raise RequestError("give --benchmark or --data, not both")
    if data and (prompt or thinking or variant or root):
        raise RequestError("--prompt, --thinking, --variant and --root are for benchmarks; a data file is asked by the prompt templates")
    request = Request(
        arguments=arguments or [],
        flags=flags | judge_flags(judge_model, judge_url),
        benchmark=benchmark,
        root=root,
        variant=variant,
        prompt=prompt,
        thinking=thinking,
        budget=budget,
        judge_later=judge_later,
        output=output,
        limit=limit,
        fresh=fresh,
        retry=retry,
    )
    run_suite(request, as_json)


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

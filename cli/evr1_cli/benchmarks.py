"""`evr1 benchmarks`: which there are, what belongs to one, and whether a release is whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.listing import Json, Row, list_app, print_json

if TYPE_CHECKING:
    from evr1_core.specs import BenchmarkSpec

_MOST = 10
"""Lines of one list on the console."""


def _rows(spec: BenchmarkSpec) -> Iterable[Row]:
    yield {
        "name": spec.name,
        "summary": spec.summary,
        "questions": spec.size,
        "variants": list(spec.variants),
        "metric": spec.metric,
        "problem_types": list(spec.problem_types),
        "licence": spec.licence,
        "url": spec.url,
    }


app = list_app("BenchmarkSpec", _rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A benchmark; `evr1 benchmarks list`.")],
    root: Annotated[Path | None, typer.Option("--root", help="Its release: known faults of it are listed too.")] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="Split, track or input form of --root.")] = None,
    as_json: Json = False,
) -> None:
    """Show one benchmark: questions per variant, metric, licence, where to get it, the expected layout, its prompts.

    With --root also what is known to be wrong in that release.
    """
    from evr1_core import plugins

    spec = plugins.benchmark(name)
    adapter: Any = plugins.build(spec)
    found = {
        "name": spec.name,
        "summary": spec.summary,
        "problem_types": list(spec.problem_types),
        "questions": spec.size,
        "variants": dict(spec.variants),
        "metric": spec.metric,
        "prompts": list(getattr(adapter, "prompts", ())),
        "tables": list(getattr(adapter, "groups", ())),
        "licence": spec.licence,
        "paper": spec.paper,
        "url": spec.url,
        "layout": spec.layout.splitlines(),
    }
    if root is not None:
        samples = adapter.samples(root, variant)
        found["errata"] = list(adapter.errata(samples)) if hasattr(adapter, "errata") else []
    if as_json:
        print_json(found)
        return
    width = max(map(len, found)) + 2
    for key, value in found.items():
        for index, line in enumerate(_lines(value)):
            typer.echo(f"{(key if not index else '').replace('_', ' '):{width}}{line}")


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(help="A benchmark; `evr1 benchmarks list`.")],
    root: Annotated[Path | None, typer.Option("--root", help="Folder of its release, or of several by their names.")] = None,
    variant: Annotated[str | None, typer.Option("--variant", help="Split, track or input form; else the first.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Plan the tokens for this model: a preset or a directory.")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Media budget by name; `evr1 plugins list --kind budget`.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="official, easyvideor1 or neutral; else its first.")] = None,
    thinking: Annotated[bool, typer.Option("--thinking", help="The wording that asks for reasoning.")] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Configuration, for example the budget.")] = None,
    as_json: Json = False,
) -> None:
    """Check a release: rows, media by their headers, options, gold answers, known faults, lengths, one prompt.

    Nothing is decoded. The exit code is 1 where an official question can't be asked: rows differ from the official
    number, media are missing or damaged, or a prompt is too long for --model. Faulty gold answers are told; they are
    counted apart when they are scored.
    """
    from contextlib import closing

    from evr1_cli.suite import Request, wording
    from evr1_core import plugins
    from evr1_core.errors import Evr1Error
    from evr1_core.evaluate.check import check_release
    from evr1_core.evaluate.suite import read_names, root_of
    from evr1_core.rollout.setup import open_builder, open_store

    [wanted] = read_names(name, variant)
    spec = plugins.benchmark(wanted.name)
    adapter: Any = plugins.build(spec)
    chosen = wanted.variant or next(iter(spec.variants), None)
    ask = wording(adapter, wanted.name, prompt, thinking)[1]
    config = Request(arguments=settings or [], flags={}, budget=budget).config(wanted.name)
    samples = adapter.samples(root_of(wanted, root, True, adapter), chosen)
    template = config.data.template or getattr(adapter, "template", None)
    config = config.model_copy(update={"data": config.data.model_copy(update={"template": template})})
    with closing(open_store(config)) as store:
        builder = None
        if model is not None:
            from evr1_core.policy.load import load_adapter

            builder = open_builder(config, load_adapter(model, config.model.chat), store, "evaluate", ask)
        expected = spec.variants.get(chosen) if chosen else spec.size
        found = check_release(samples, store, expected=expected, benchmark=adapter, builder=builder, ask=ask, template=template)
    found = {"benchmark": wanted.name, "variant": chosen, "model": model, "budget": budget, **found}
    print_json(found) if as_json else _tell(found)
    if not found["whole"]:
        raise Evr1Error(f"{wanted.name}: not every official question can be asked")


def _tell(found: Mapping[str, Any]) -> None:
    expected = "" if found["expected"] is None else f" of {found['expected']:,} expected"
    typer.echo(f"rows      {found['rows']:,}{expected}; {_counts(found['problem_types'])}")
    typer.echo(f"media     {found['media']:,} in {found['files']:,} files")
    for code, files in found["media_faults"].items():
        typer.echo(f"{code:9} {len(files):,} files, {sum(len(file['questions']) for file in files):,} questions")
        for file in files[:_MOST]:
            typer.echo(f"            {file['path']}: {file['reason']}")
        _more(files)
    options = found["options"]
    if options["counts"]:
        typer.echo(f"options   {', '.join(f'{count:,} questions with {number}' for number, count in options['counts'].items())}")
    for what, text in (("twice", "have an option twice"), ("single", "have one option only")):
        if options[what]:
            typer.echo(f"            {len(options[what]):,} {text}: {_ids(options[what])}")
    typer.echo("gold      " + ("every answer can be scored" if not found["gold"] else "some answers can't be scored"))
    for cause, ids in found["gold"].items():
        typer.echo(f"            {cause}: {len(ids):,}: {_ids(ids)}")
    for line in found["errata"]:
        typer.echo(f"errata    {line}")
    plan = found["tokens"]
    if plan:
        typer.echo(
            f"tokens    min {plan['min'] or 0:,}, median {plan['median'] or 0:,.0f}, max {plan['max'] or 0:,}, "
            f"sum {plan['sum']:,} of {plan['measured']:,} prompts; allowed are {plan['limit']:,}"
        )
        if plan["too_long"]:
            typer.echo(f"            {len(plan['too_long']):,} too long: {_ids(plan['too_long'])}")
        for reason, count in plan["refused"].items():
            typer.echo(f"            {reason}: {count:,} not measured")
    if found["prompt"]:
        typer.echo(f"\nprompt of {found['prompt']['id']}:\n{found['prompt'].get('error') or found['prompt']['text']}\n")
    typer.echo("whole: every official question can be asked" if found["whole"] else "NOT whole")


def _more(items: list[Any]) -> None:
    if len(items) > _MOST:
        typer.echo(f"            and {len(items) - _MOST:,} more; --json has them all")


def _ids(ids: list[str]) -> str:
    return ", ".join(ids[:_MOST]) + (f" and {len(ids) - _MOST:,} more" if len(ids) > _MOST else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}  {'' if number is None else f'{number:,} questions'}".rstrip() for name, number in value.items()]
    if isinstance(value, list):
        return [str(line) for line in value]
    return [] if value in (None, "") else [f"{value:,}" if isinstance(value, int) else str(value)]

"""`evr1 rewards`: list the rewards, see how one scores an answer, check cases, score responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli import rewards_score
from evr1_cli.listing import Row, aligned, list_app, print_json

if TYPE_CHECKING:
    from evr1_core.scoring.cases import Outcome
    from evr1_core.specs import RewardSpec

Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]


def _rows(spec: RewardSpec) -> Iterable[Row]:
    from evr1_core.data.prompts import DEFAULT, shipped

    template = spec.template or (spec.name if spec.name in shipped() else DEFAULT)
    yield {"name": spec.name, "summary": spec.summary, "problem_types": list(spec.problem_types), "template": template}


app = list_app("RewardSpec", _rows)
app.command("score")(rewards_score.command)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A reward, `name@distribution` too, or a problem type.")],
    as_json: Json = False,
) -> None:
    """Show one reward in full: problem types, template, requirements, options with their defaults and what they mean."""
    from evr1_cli import plugins as plugin_command
    from evr1_core.plugins import find_all, reward
    from evr1_core.specs import RewardSpec

    if not any(isinstance(offer.spec, RewardSpec) for offer in find_all(name)):
        reward(name)  # says which one may be meant
    plugin_command.show(name, as_json)


@app.command("try")
def try_(
    problem_type: Annotated[str, typer.Argument(help="As in the data, for example `multiple choice`.")],
    answer: Annotated[str, typer.Option(help="The gold answer: text, or JSON for a list, an object or a number.")],
    response: Annotated[str, typer.Option(help="What the model wrote; - reads standard input.")],
    option: Annotated[list[str] | None, typer.Option(help="An answer option; once for each.")] = None,
    problem: Annotated[str, typer.Option(help="The question.")] = "",
    scoring: Annotated[str, typer.Option(help="Scoring options of the row as JSON.")] = "{}",
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another column of the row, as JSON or text: width=640, tests=[...].")
    ] = None,
    json: Json = False,
) -> None:
    """Score one response in a worker, as a run does. Exit code 1 when it can't be scored or the gold answer is faulty."""
    import json as json_module
    import sys
    from dataclasses import asdict

    from evr1_core.config.models import RewardSection
    from evr1_core.errors import RequestError
    from evr1_core.plugins import reward_for
    from evr1_core.scoring.pool import Item, ScoringPool
    from evr1_core.types import Sample

    reward_for(problem_type)  # an unknown type stops here, with the nearest known one
    options = _json_or_text(scoring)
    if not isinstance(options, dict):
        raise RequestError(f"--scoring {scoring!r} must be a JSON object")
    sample = Sample(
        id="row",
        problem=problem,
        answer=_json_or_text(answer),
        problem_type=problem_type,
        options=tuple(option) if option else None,
        scoring=options,
        extra=_columns(column or []),
    )
    text = sys.stdin.read() if response == "-" else response
    with ScoringPool(RewardSection(), workers=1) as pool:
        score = pool.score([Item(sample, text)])[0]
    found = {name: value for name, value in asdict(score).items() if json or value not in ("", None, {})}
    typer.echo(json_module.dumps(found, ensure_ascii=False) if json else "\n".join(f"{name:<9} {value}" for name, value in found.items()))
    if score.status in ("failed", "invalid_gold"):
        raise typer.Exit(1)


@app.command()
def check(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Cases: a JSON list, or JSON lines.")],
    problem_type: Annotated[list[str] | None, typer.Option(help="Only the cases of this type; may be given several times.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="Only this case; may be given several times.")] = None,
    json: Json = False,
) -> None:
    """Run cases (row, response, expected outcome) against the installed rewards and print every difference.

    Exit code 1 when there is one, 2 when a file or a case can't be used.
    """
    from dataclasses import asdict

    from evr1_core.scoring.cases import run_cases

    outcomes = run_cases(files, problem_type or (), only or (), isolated=True)
    differences = [difference for outcome in outcomes for difference in outcome.differences]
    if json:
        print_json({"cases": len(outcomes), "types": _by_type(outcomes), "differences": [asdict(one) for one in differences]})
    else:
        for difference in differences:
            typer.echo(f"{difference.place}: {difference}")
        rows = [[name, *map(str, counts.values())] for name, counts in _by_type(outcomes).items()]
        typer.echo("\n".join(aligned([["problem type", "cases", "as expected", "different"], *rows])))
    if differences:
        raise typer.Exit(1)


def _by_type(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    cases = Counter(outcome.case.problem_type for outcome in outcomes)
    different = Counter(outcome.case.problem_type for outcome in outcomes if outcome.differences)
    return {
        name: {"cases": count, "as_expected": count - different[name], "different": different[name]}
        for name, count in sorted(cases.items())
    }


def _columns(given: Sequence[str]) -> dict[str, Any]:
    from evr1_core.errors import RequestError

    columns: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise RequestError(f"--column {text!r} must read NAME=VALUE, for example width=640")
        columns[name.strip()] = _json_or_text(value)
    return columns


def _json_or_text(text: str) -> object:
    """JSON where it is a list, an object or a number; any other text is itself."""
    import json

    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (list, dict, int, float)) and not isinstance(value, bool) else text

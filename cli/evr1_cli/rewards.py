"""`evr1 rewards`: list the rewards, and see how one scores an answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from evr1_cli.listing import Row, list_app

if TYPE_CHECKING:
    from evr1_core.specs import RewardSpec


def _rows(spec: RewardSpec) -> Iterable[Row]:
    yield {"name": spec.name, "summary": spec.summary, "problem_types": list(spec.problem_types)}


app = list_app("RewardSpec", _rows)


@app.command()
def check(
    problem_type: Annotated[str, typer.Argument(help="As in the data, for example `multiple choice`.")],
    answer: Annotated[str, typer.Option(help="The gold answer: text, or JSON for a list, an object or a number.")],
    response: Annotated[str, typer.Option(help="What the model wrote; - reads standard input.")],
    option: Annotated[list[str] | None, typer.Option(help="An answer option; once for each.")] = None,
    problem: Annotated[str, typer.Option(help="The question.")] = "",
    scoring: Annotated[str, typer.Option(help="Scoring options of the row as JSON.")] = "{}",
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
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
    gold, options = _json_or_text(answer), _json_or_text(scoring)
    if not isinstance(options, dict):
        raise RequestError(f"--scoring {scoring!r} must be a JSON object")
    sample = Sample("row", problem, gold, problem_type, options=tuple(option) if option else None, scoring=options)
    text = sys.stdin.read() if response == "-" else response
    with ScoringPool(RewardSection(), workers=1) as pool:
        score = pool.score([Item(sample, text)])[0]
    found = {name: value for name, value in asdict(score).items() if json or value not in ("", None, {})}
    typer.echo(json_module.dumps(found, ensure_ascii=False) if json else "\n".join(f"{name:<9} {value}" for name, value in found.items()))
    if score.status in ("failed", "invalid_gold"):
        raise typer.Exit(1)


def _json_or_text(text: str) -> object:
    """JSON where it is a list, an object or a number; any other text is itself."""
    import json

    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (list, dict, int, float)) and not isinstance(value, bool) else text

"""`evr1 rescore`: score stored answers anew, without the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from evr1_cli.listing import Json

_MOST = 10


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an evaluation, or of a suite.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Changes of rewards.*")] = None,
    benchmark: Annotated[str | None, typer.Option("--benchmark", help="Read and table the answers as this benchmark does.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
    as_json: Json = False,
) -> None:
    """Score stored answers by the scorer as it is now. The model isn't needed; the old results are kept beside the new ones.

    Rewards are those of the run, with the changes that are given. Verdicts of a judge stay; `evr1 judge` asks again.
    """
    from evr1_core.evaluate.rescore import rescore
    from evr1_core.evaluate.stored import open_runs
    from evr1_core.evaluate.suite import refresh_tables
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.score import check_rewards

    found = []
    for one in open_runs(run):
        section = changed_rewards(one.rewards(), overrides or [])
        check_rewards(section)
        with ScoringPool(section) as pool:
            changes = rescore(one, pool, section, one.adapter(benchmark), write=not dry_run)
        for folder in () if dry_run else (one.directory, one.directory.parent):
            refresh_tables(folder)
        found.append({"run": str(one.directory), "title": one.title, **changes})
        if not as_json:
            tell(found[-1])
    if as_json:
        from evr1_cli.listing import print_json

        print_json(found)


def changed_rewards(section: Any, overrides: list[str]) -> Any:
    """The stored rewards with dotted overrides. Raises RequestError for a key outside of `rewards`."""
    from evr1_core.config.load import load
    from evr1_core.config.rewards import RewardSection
    from evr1_core.errors import RequestError

    if not overrides:
        return section
    loaded = load(overrides=overrides)
    values: dict[str, Any] = section.model_dump(mode="json")
    given = loaded.config.model_dump(mode="json")
    for key in (key for key, origin in loaded.origins.items() if origin != "default"):
        first, *names = key.split(".")
        if first != "rewards":
            raise RequestError(f"{key}: only keys of rewards change a score; the answers stay as they are")
        source, target = given["rewards"], values
        for name in names[:-1]:
            source = source[name]
            target[name] = dict(target.get(name) or {})
            target = target[name]
        target[names[-1]] = source[names[-1]]
    return RewardSection.model_validate(values)


def tell(found: Mapping[str, Any]) -> None:
    from evr1_core.evaluate.suite import interval

    typer.echo(f"{found['title']}: {found['changed']} of {found['answers']} answers changed")
    for move, count in found["moves"].items():
        typer.echo(f"  {count:>6}  {move}")
    if found["official_changed"]:
        typer.echo(f"  {found['official_changed']:>6}  official readings")
    for row in found["rows"][:_MOST]:
        typer.echo(f"  {row['id']}: {row['before']} -> {row['after']}")
    if len(found["rows"]) > _MOST:
        typer.echo(f"  and {len(found['rows']) - _MOST} more; --json has them all")
    heads = [head or {} for head in (found["before"], found.get("after", found["before"]))]
    texts = [interval(head.get("value"), head.get("low"), head.get("high")) for head in heads]
    if "after" not in found:
        typer.echo(f"  headline {texts[0]}; nothing was written")
        return
    typer.echo(f"  headline {texts[0]} -> {texts[1]}")
    for note in found["notes"]:
        typer.echo(f"  note: {note}")
    typer.echo(f"  the old answers are in {found['kept']}")

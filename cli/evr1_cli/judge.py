"""`evr1 judge`: a second stage for answers that only a judge can score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evr1_cli.listing import Json


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an evaluation, or of a suite.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides: rewards.judge.*.")
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option("--judge-model", help="rewards.judge.model: at --judge-url, else a preset or directory in this process.")
    ] = None,
    judge_url: Annotated[str | None, typer.Option("--judge-url", help="rewards.judge.url: an OpenAI-compatible endpoint.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Ask about answers that have a verdict too.")] = False,
    as_json: Json = False,
) -> None:
    """Ask a judge about the answers that wait for one, and write their scores. All others stay as they are.

    Verdicts are written as they come; the same command goes on where it was stopped. The exit code is 1 while answers are
    left without one.
    """
    from contextlib import closing

    from evr1_cli.listing import print_json
    from evr1_cli.suite import judge_flags
    from evr1_core.config.load import load, split_arguments
    from evr1_core.errors import Evr1Error, RequestError
    from evr1_core.evaluate.rescore import judge
    from evr1_core.evaluate.stored import open_runs
    from evr1_core.evaluate.suite import interval, refresh_tables
    from evr1_core.record.console import Console
    from evr1_core.scoring.pool import ScoringPool
    from evr1_core.scoring.score import check_rewards

    files, overrides = split_arguments(arguments or [])
    given = load(files, overrides, judge_flags(judge_model, judge_url)).config.rewards
    if given.judge is None:
        raise RequestError("no judge: give --judge-model (and --judge-url), or rewards.judge in a file; docs/judge.md")
    runs = open_runs(run)
    check_rewards(given)
    found = []
    for one in runs:
        section = one.rewards().model_copy(update={"judge": given.judge})
        with ScoringPool(section) as pool, closing(Console(f"judge {one.title}")) as console:

            def advance(done: int, total: int, console: Console = console) -> None:
                console.total = total
                console.advance(done)

            counts = judge(one, pool, section, one.adapter(), again, advance)
        for folder in (one.directory, one.directory.parent):
            refresh_tables(folder)
        found.append({"run": str(one.directory), "title": one.title, **counts})
    if as_json:
        print_json(found)
    for one in () if as_json else found:
        heads = [interval(head.get("value"), head.get("low"), head.get("high")) for head in (one["before"] or {}, one["after"] or {})]
        typer.echo(f"{one['title']}: {one['judged']} of {one['wanted']} answers judged; headline {heads[0]} -> {heads[1]}")
        for reason, count in one["failed"].items():
            typer.echo(f"  {count} times {reason}")
        for note in one.get("notes", []):
            typer.echo(f"  note: {note}")
    left = sum(one["wanted"] - one["judged"] for one in found)
    if left:
        raise Evr1Error(f"{left} answers have no verdict: the judge did not answer, or not readably; the same command asks again")

"""`evr1 compare`: two evaluations, question by question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evr1_cli.listing import Json


def command(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an evaluation, or of a suite.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="The other one.")],
    show: Annotated[int, typer.Option("--show", min=0, help="Changed questions to print.")] = 10,
    as_json: Json = False,
) -> None:
    """Compare two evaluations: the difference (second minus first) over the questions that both have, with its interval and a
    sign test; which questions changed, with both answers; and what was asked otherwise: settings, prompts, frames.

    Of two suites every benchmark that both have is compared.
    """
    from evr1_core.evaluate.compare import compare_runs, pair_up
    from evr1_core.evaluate.stored import open_runs

    found = [compare_runs(one, other) for one, other in pair_up(open_runs(first), open_runs(second))]
    if as_json:
        from evr1_cli.listing import print_json

        print_json(found)
        return
    for place, one in enumerate(found):
        typer.echo("\n" * bool(place), nl=False)
        _tell(one, show)


def _tell(found: Mapping[str, Any], show: int) -> None:
    first, second = found["first"], found["second"]
    typer.echo(f"{first['title']}: {first['directory']} ({first['model']}) -> {second['directory']} ({second['model']})")
    for name in ("strict", "official"):
        if found[name]:
            _difference(name, found[name])
    for key, text in (("only_first", "questions are in the first alone"), ("only_second", "questions are in the second alone"),
                      ("other_question", "ids stand for another question, answer or medium"),
                      ("other_prompt", "prompts differ"), ("other_frames", "questions were shown other frames")):  # fmt: skip
        if found[key]:
            typer.echo(f"  {len(found[key])} {text}: {_ids(found[key])}")
    for line in found["settings"]:
        typer.echo(f"  setting {line}")
    if not (found["settings"] or found["other_prompt"] or found["other_frames"]):
        typer.echo("  prompts, frames and settings are the same")
    changed = found["changed"]
    typer.echo(f"  {len(changed)} questions changed" + (":" if changed and show else ""))
    for row in changed[:show]:
        typer.echo(f"    {row['id']} (right: {_short(row['gold'], 30)})")
        for side in ("first", "second"):
            said = row[side]
            number = "–" if said["accuracy"] is None else f"{said['accuracy']:g}"
            typer.echo(f"      {number:>4}  {'; '.join(_answer(answer) for answer in said['answers'][:3])}")
    if len(changed) > show:
        typer.echo(f"    and {len(changed) - show} more; --show N or --json has them")


def _difference(name: str, found: Mapping[str, Any]) -> None:
    left = f", {found['without_number']} without a number in both" if found["without_number"] else ""
    typer.echo(
        f"  {name:8} {100 * found['first']:.1f} -> {100 * found['second']:.1f}: {100 * found['difference']:+.1f} "
        f"[{100 * found['low']:+.1f}, {100 * found['high']:+.1f}] over {found['n']} questions about {found['videos']} videos{left}; "
        f"{found['better']} better, {found['worse']} worse, sign test p = {found['p']:.3g}"
    )


def _answer(answer: Mapping[str, Any]) -> str:
    read = answer["answer"] if answer["answer"] is not None else f"{answer['status']}{': ' if answer['reason'] else ''}{answer['reason']}"
    return f"{_short(read, 40)} in {_short(answer['text'], 80)!r}"


def _short(text: str, longest: int) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _ids(ids: Sequence[str], most: int = 5) -> str:
    return ", ".join(ids[:most]) + (f" and {len(ids) - most} more" if len(ids) > most else "")

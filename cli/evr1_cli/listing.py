"""What every `list` command does alike: rows of one kind of spec, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group

if TYPE_CHECKING:
    from evr1_core.specs import Spec

Row = Mapping[str, Any]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def list_app(kind: str, rows: Callable[[Any], Iterable[Row]]) -> typer.Typer:
    """A command with the subcommand `list`. `kind` is the name of a spec class, `rows` makes the rows of one spec."""
    app = group()

    @app.callback()
    def _group() -> None:  # keeps `list` a subcommand where it is the only one
        pass

    def list_(as_json: Json = False) -> None:
        show_rows(_rows(kind, rows), as_json)

    app.command("list", help=f"List the {kind.removesuffix('Spec').lower()}s of all plugins.")(list_)
    return app


def show_rows(rows: Sequence[Row], as_json: bool) -> None:
    """Print rows with the same keys: JSON, a table on a terminal, else aligned text of the columns that are not empty."""
    if as_json:
        print_json(rows)
        return
    columns = [key for key in (rows[0] if rows else ()) if any(_cell(row[key]) for row in rows)]
    if not rows:
        print("nothing found; `evr1 plugins list` shows what is installed", file=sys.stderr)
    elif sys.stdout.isatty():
        _rich_table(rows, columns)
    else:
        for line in aligned([columns, *([_cell(row[key]) for key in columns] for row in rows)]):
            print(line)


def print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns, two blanks between them."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _rows(kind: str, rows: Callable[[Any], Iterable[Row]]) -> list[Row]:
    from evr1_core import plugins, specs

    wanted: type[Spec] = getattr(specs, kind)
    found = plugins.catalogue()
    result: list[Row] = []
    for offer, state in zip(found.offers, found.rows(), strict=False):  # the rows of failed plugins come last
        if isinstance(offer.spec, wanted):
            origin = {"distribution": state.distribution, "status": state.status, "reason": state.reason}
            result += [{**row, **origin} for row in rows(offer.spec)]
    for failure in found.failures:
        print(f"evr1: plugin {failure.plugin} failed to load: {failure.reason}", file=sys.stderr)
    return result


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _rich_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        style = {"failed": "red", "conflict": "red", "missing requirement": "yellow"}.get(row.get("status", ""), "")
        table.add_row(*(Text(_cell(row[column])) for column in columns), style=style)
    Console().print(table)

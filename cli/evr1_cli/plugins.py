"""`evr1 plugins`: what is installed, and what one of it is."""

from __future__ import annotations

from typing import Annotated

import typer

from evr1_cli.group import group

app = group()


@app.command("list")
def list_plugins(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """List everything that plugins offer."""
    print(as_json)


@app.command("show")
def show() -> None:
    """x"""

"""Typer with the settings that all of `evr1` shares."""

from __future__ import annotations

from typing import Any

import typer


def group(help: str | None = None, **settings: Any) -> typer.Typer:
    """A command with subcommands. Plain help (rich would cost 100 ms) and Python's own tracebacks."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=settings.pop("add_completion", False),
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )

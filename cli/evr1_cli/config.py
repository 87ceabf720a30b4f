"""`evr1 config show`: the configuration as it will be used, and where each value came from."""

from __future__ import annotations

from typing import Annotated

import typer

from evr1_cli.group import group

app = group("Show configurations.")


@app.callback()
def _group() -> None:
    """Show configurations."""


@app.command()
def show(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="FILE... KEY=VALUE...", help="YAML files and dotted overrides.")] = None,
    origin: Annotated[bool, typer.Option("--origin", help="One line per key, with the place its value came from.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Print the checked configuration. Without --origin the output is a file that loads back to the same values."""
    import json as json_module

    from evr1_core.config.load import dump, leaves, load, split_arguments
    from evr1_core.validation import show as show_value

    loaded = load(*split_arguments(arguments or []))
    values = leaves(loaded.config)
    if json and origin:
        both = {key: {"value": value, "origin": loaded.origins[key]} for key, value in values.items()}
        typer.echo(json_module.dumps(both, indent=2, ensure_ascii=False))
    elif json:
        typer.echo(json_module.dumps(loaded.config.model_dump(mode="json"), indent=2, ensure_ascii=False))
    elif origin:
        for key, value in values.items():
            typer.echo(f"{key} = {show_value(value)}   ({loaded.origins[key]})")
    else:
        typer.echo(dump(loaded.config), nl=False)

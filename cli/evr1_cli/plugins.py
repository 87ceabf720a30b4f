"""`evr1 plugins`: what is installed, and what one of it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from evr1_cli.group import group
from evr1_cli.listing import Json, aligned, print_json, show_rows

if TYPE_CHECKING:
    from evr1_core.discovery import Offer, PluginRow

app = group()


@app.command("list")
def list_plugins(
    kind: Annotated[
        str | None, typer.Option(help="Only one kind: reward, benchmark, algorithm, model, engine, tracker, budget, command.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List everything that plugins offer, and the plugins that failed with the reason."""
    from dataclasses import asdict

    from evr1_core.discovery import HOOKS, kind_of
    from evr1_core.errors import RequestError, nearest
    from evr1_core.plugins import catalogue

    kinds = [kind_of(spec) for spec in HOOKS.values()]
    if kind is not None and kind not in kinds:
        raise RequestError(f"--kind {kind}: no such kind{nearest(kind, kinds)}")
    rows = [asdict(row) for row in catalogue().rows() if kind in (None, row.kind) or row.kind == "plugin"]
    if not as_json:
        for row in rows:
            del row["plugin"]
    show_rows(rows, as_json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Name of a spec, a problem type, a model type, a preset or a plugin.")],
    as_json: Json = False,
) -> None:
    """Show one plugin's spec in full: target, requirements, problem types, presets, options with their defaults."""
    from evr1_core.errors import RequestError, nearest
    from evr1_core.plugins import catalogue, find_all

    found = catalogue()
    offers = find_all(name) or [offer for offer in found.offers if offer.plugin.name == name]
    failed = [row for row in found.rows() if row.kind == "plugin" and row.name == name]
    if failed:
        raise RequestError(f"plugin {name!r} ({failed[0].distribution} {failed[0].version}) failed to load: {failed[0].reason}")
    if not offers:
        raise RequestError(f"no plugin offers {name!r}{nearest(name, {row.name for row in found.rows()})}")
    states = {id(offer): row for offer, row in zip(found.offers, found.rows(), strict=False)}
    shown = [_describe(offer, states[id(offer)]) for offer in offers]
    if as_json:
        print_json(shown)
        return
    for index, spec in enumerate(shown):
        print("\n" * bool(index), end="")
        _print_spec(spec)


def _describe(offer: Offer, state: PluginRow) -> dict[str, Any]:
    """A spec's fields with its origin, and its options with their defaults."""
    from dataclasses import asdict

    place = {key: getattr(state, key) for key in ("kind", "distribution", "version", "plugin", "status", "reason")}
    fields = {key: value for key, value in asdict(offer.spec).items() if key not in ("name", "summary")}
    return {"name": offer.spec.name, "summary": offer.spec.summary, **place, **fields, **_options(fields.get("config"))}


def _options(target: str | None) -> dict[str, Any]:
    """The options of a plugin, or why they can't be read: then something that the plugin needs isn't installed."""
    if target is None:
        return {}
    from evr1_core.config.docs import field_rows
    from evr1_core.errors import Evr1Error
    from evr1_core.plugins import resolve

    try:
        return {"options": field_rows(resolve(target))}
    except Evr1Error as error:
        return {"options_error": str(error)}


def _print_spec(spec: dict[str, Any]) -> None:
    width = max(map(len, spec)) + 2
    for key, value in spec.items():
        if value in (None, "", (), {}) or key == "options":
            continue
        lines = [f"{name}  {place}" for name, place in value.items()] if isinstance(value, dict) else [_text(value)]
        for index, line in enumerate(lines):
            print(f"{(key if not index else '').replace('_', ' '):{width}}{line}")
    options = spec.get("options", [])
    if options:
        print("options")
        for line in aligned([(row["option"], row["type"], row["default"], row["meaning"]) for row in options]):
            print(f"  {line}")


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)

"""Find the installed plugins and collect what they offer: entry points -> pluggy -> specs.

Every plugin stands alone: one that can't be imported, misspells a hook, raises or returns something else than specs
is kept with the reason, and the others work. `EVR1_LOAD_PLUGINS` limits which are loaded: unset is all, empty is
none, else the entry points named, separated by commas. `EVR1_TRACE_PLUGINS=1` prints each hook call.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from evr1_core import hookspecs
from evr1_core.errors import Evr1Error, RequestError, nearest
from evr1_core.specs import (
    AlgorithmSpec,
    BenchmarkSpec,
    BudgetSpec,
    CommandSpec,
    EngineSpec,
    ModelSpec,
    RewardSpec,
    Spec,
    TrackerSpec,
)

GROUP = "evr1"
HOOKS: dict[str, type] = {
    "evr1_rewards": RewardSpec,
    "evr1_benchmarks": BenchmarkSpec,
    "evr1_algorithms": AlgorithmSpec,
    "evr1_models": ModelSpec,
    "evr1_engines": EngineSpec,
    "evr1_trackers": TrackerSpec,
    "evr1_budgets": BudgetSpec,
    "evr1_commands": CommandSpec,
}
S = TypeVar("S", bound=Spec)


class PluginFault(Evr1Error):
    """A plugin that can't be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point of the group `evr1`."""

    name: str
    """Of the entry point, as `EVR1_LOAD_PLUGINS` takes it."""
    module: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Offer:
    """A spec and the plugin that it came from."""

    spec: Spec
    plugin: Plugin


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that could not be loaded, and why."""

    plugin: Plugin
    reason: str


@dataclass(frozen=True, slots=True)
class PluginRow:
    """One line of `evr1 plugins list`: a spec, or a plugin that failed (kind `plugin`)."""

    kind: str
    name: str
    summary: str
    distribution: str
    version: str
    status: str
    """`loaded`, `failed`, `conflict` or `missing requirement`."""
    reason: str
    plugin: str
    """Name of the entry point."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything that the loaded plugins offer, in the order of their names."""

    offers: tuple[Offer, ...]
    failures: tuple[Failure, ...]
    left_out: tuple[str, ...] = ()
    """Entry points that EVR1_LOAD_PLUGINS leaves out."""

    def specs(self, kind: type[S]) -> list[S]:
        """All specs of one kind, those in conflict too."""
        return [offer.spec for offer in self.offers if isinstance(offer.spec, kind)]

    def offering(self, kind: type[Spec], what: str, key: str) -> list[Offer]:
        """The offers of a kind that claim a key, for example `("problem type", "counting")`."""
        return [offer for offer in self.offers if isinstance(offer.spec, kind) and (what, key) in claims(offer.spec)]

    def conflicts(self) -> dict[int, str]:
        """Offers (by their place in `offers`) that share a name or another key with a second one -> why."""
        owners: dict[tuple[str, str, str], list[int]] = {}
        for place, offer in enumerate(self.offers):
            for what, key in claims(offer.spec):
                owners.setdefault((kind_of(offer.spec), what, key), []).append(place)
        found: dict[int, list[str]] = {}
        for (_, what, key), places in owners.items():
            for place in places if len(places) > 1 else ():
                others = ", ".join(describe(self.offers[other]) for other in places if other != place)
                found.setdefault(place, []).append(f"{what} {key!r} is also offered by {others}")
        return {place: "; ".join(reasons) for place, reasons in found.items()}

    def rows(self) -> list[PluginRow]:
        """One row per spec and per failed plugin."""
        conflicts = self.conflicts()
        rows = [_row(offer, conflicts.get(place, "")) for place, offer in enumerate(self.offers)]
        for failure in self.failures:
            plugin = failure.plugin
            rows.append(PluginRow("plugin", plugin.name, "", plugin.distribution, plugin.version, "failed", failure.reason, plugin.name))
        return rows


def kind_of(spec: Spec | type[Spec]) -> str:
    """`reward` for a RewardSpec or its class."""
    kind = spec if isinstance(spec, type) else type(spec)
    return kind.__name__.removesuffix("Spec").lower()


def claims(spec: Spec) -> Iterator[tuple[str, str]]:
    """What a spec wants for itself alone, as (what, key)."""
    yield "name", spec.name
    if isinstance(spec, RewardSpec):
        yield from (("problem type", key) for key in dict.fromkeys(map(normal_problem_type, spec.problem_types)))
    if isinstance(spec, ModelSpec):
        yield from (("model type", key) for key in dict.fromkeys(spec.model_types))
        yield from (("preset", key) for key in (*spec.presets, *spec.made))


def normal_problem_type(text: str) -> str:
    """Lower case; every run of blank, `_`, `-` or `/` is one dash."""
    return re.sub(r"[\s_/-]+", "-", text.strip().lower())


def describe(offer: Offer) -> str:
    """`name@distribution (target)`."""
    spec = offer.spec
    target = spec.advantage if isinstance(spec, AlgorithmSpec) else getattr(spec, "target", None)
    return f"{spec.name}@{offer.plugin.distribution} ({target or 'presets'})"


def missing_requirements(spec: Spec) -> list[str]:
    """Requirements of a spec that are not installed, or not in a fitting version; `one | other` is met by either.

    Raises PluginFault for a text that is no requirement.
    """
    from packaging.requirements import InvalidRequirement

    try:
        return [text for text in spec.requires if not any(_installed(one) for one in text.split("|"))]
    except InvalidRequirement as error:
        raise PluginFault(f"{kind_of(spec)} {spec.name!r}: requires {spec.requires}: {_one_line(error)}") from error


def _installed(text: str) -> bool:
    from packaging.requirements import Requirement

    requirement = Requirement(text.strip())
    if requirement.marker and not requirement.marker.evaluate():
        return True
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False


def installed_versions(requirements: Iterable[str]) -> list[str]:
    """`name version` of the distributions that are installed, in a version that doesn't fit or fits."""
    from packaging.requirements import Requirement

    found: dict[str, str] = {}
    for text in requirements:
        for one in text.split("|"):
            name = Requirement(one.strip()).name
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return [f"{name} {number}" for name, number in found.items()]


def pip_line(requirements: Iterable[str]) -> str:
    """The command that installs them; of alternatives the first."""
    return "pip install " + " ".join(f"'{text.split('|')[0].strip()}'" for text in requirements)


@functools.cache
def catalogue() -> Catalogue:
    """What the installed plugins offer; scanned once per process (`catalogue.cache_clear()` forgets it).

    Raises RequestError when EVR1_LOAD_PLUGINS names an entry point that is not installed.
    """
    chosen, left_out = _chosen(sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)))
    offers: list[Offer] = []
    failures: list[Failure] = []
    for entry in chosen:
        plugin = _plugin(entry)
        try:
            offers += [Offer(spec, plugin) for spec in collect(entry.load(), plugin)]
        except PluginFault as fault:
            failures.append(Failure(plugin, str(fault)))
        except (Exception, SystemExit) as fault:  # whatever a stranger's module does on import is shown as its row
            failures.append(Failure(plugin, _one_line(fault)))
    return Catalogue(tuple(offers), tuple(failures), tuple(left_out))


def collect(module: ModuleType, plugin: Plugin) -> list[Spec]:
    """All specs of one plugin module. Raises PluginFault naming the hook and what is wrong with it."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    try:
        manager.register(module, plugin.name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginFault(_wrong_hook(module) or " ".join(str(error).split())) from error
    bare = [name for name, value in vars(module).items() if name in HOOKS and inspect.isfunction(value) and not hasattr(value, "evr1_impl")]
    if bare:
        raise PluginFault(f"{bare[0]} is not marked: put @hookimpl (from evr1_core.hookspecs) above it")
    if not manager.get_hookcallers(module):
        raise PluginFault(f"module {plugin.module} has no hook; known: {', '.join(HOOKS)}")
    specs: list[Spec] = []
    for hook, kind in HOOKS.items():
        if getattr(manager.hook, hook).get_hookimpls():
            specs += _call(manager, hook, kind, plugin)
    return specs


def _call(manager: pluggy.PluginManager, hook: str, kind: type, plugin: Plugin) -> list[Spec]:
    start = time.perf_counter()
    try:
        results = getattr(manager.hook, hook)()  # one per implementation; pluggy leaves out None
        found = [spec for result in results for spec in result]
    except Exception as error:
        raise PluginFault(f"{hook} raised {_one_line(error)}") from error
    if not results:
        raise PluginFault(f"{hook} returned nothing: return a list of {kind.__name__}")
    for spec in found:
        if not isinstance(spec, kind):
            raise PluginFault(f"{hook} returned {_short(spec)}, not a {kind.__name__}")
        if not isinstance(spec.name, str) or not spec.name or "@" in spec.name or spec.name != "".join(spec.name.split()):
            raise PluginFault(f"{hook}: name {spec.name!r} must be text without blanks and without '@'")
    if os.environ.get("EVR1_TRACE_PLUGINS") == "1":
        print(f"evr1: {hook} of {plugin}: {len(found)} specs in {1000 * (time.perf_counter() - start):.1f} ms", file=sys.stderr)
    return found


def _wrong_hook(module: ModuleType) -> str:
    """The misspelt hook of a module that pluggy refused, with the nearest right one."""
    for name, value in vars(module).items():
        if hasattr(value, "evr1_impl") and name not in HOOKS:
            return f"unknown hook {name!r}{nearest(name, HOOKS)}"
    return ""


def _chosen(entries: list[EntryPoint]) -> tuple[list[EntryPoint], list[str]]:
    limit = os.environ.get("EVR1_LOAD_PLUGINS")
    if limit is None:
        return entries, []
    wanted = {name.strip() for name in limit.split(",") if name.strip()}
    names = {entry.name for entry in entries}
    for name in sorted(wanted - names):
        raise RequestError(f"EVR1_LOAD_PLUGINS: no plugin {name!r} is installed{nearest(name, names)}")
    return [entry for entry in entries if entry.name in wanted], sorted(names - wanted)


def _plugin(entry: EntryPoint) -> Plugin:
    # Only an entry point that was made by hand has no distribution.
    name, found = (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "")
    return Plugin(entry.name, entry.module, name, found)


def _row(offer: Offer, conflict: str) -> PluginRow:
    status, reason = ("conflict", conflict) if conflict else ("loaded", "")
    try:
        if not conflict and (missing := missing_requirements(offer.spec)):
            status, reason = "missing requirement", pip_line(missing)
    except PluginFault as fault:
        status, reason = "failed", str(fault)
    spec, plugin = offer.spec, offer.plugin
    return PluginRow(kind_of(spec), spec.name, spec.summary, plugin.distribution, plugin.version, status, reason, plugin.name)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


def _short(value: Any) -> str:
    text = f"{type(value).__name__} {value!r}"
    return text if len(text) <= 80 else f"{text[:77]}..."

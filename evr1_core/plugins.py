"""From a name to a plugin's spec, and from a spec to what it describes. Core code finds everything through here.

    spec = reward_for("multiple choice")      # by problem type, name, model type or preset
    reward = build(spec, {"strict": True})    # requirements, import, options

Where two plugins offer one name, `name@distribution` says which is meant; it works wherever a name does. Discovery
itself is in `evr1_core.discovery`. A target is imported when it is resolved and never before.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from evr1_core.discovery import (
    Catalogue,
    Offer,
    PluginRow,
    S,
    catalogue,
    claims,
    describe,
    installed_versions,
    kind_of,
    missing_requirements,
    normal_problem_type,
    pip_line,
)
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

if TYPE_CHECKING:
    from pydantic import BaseModel

_NO_USE: Mapping[str, str] = {}
_OPTIONS_AT = {RewardSpec: "rewards.options.{name}", AlgorithmSpec: "algorithm", EngineSpec: "rollout.options"}


def reward(name: str) -> RewardSpec:
    """The reward of this name."""
    return _find(RewardSpec, "name", name)


def reward_for(problem_type: str, use: Mapping[str, str] = _NO_USE) -> RewardSpec:
    """The reward that serves a problem type in any spelling; `use` (problem type -> reward name) goes first."""
    wanted = normal_problem_type(problem_type)
    chosen = {normal_problem_type(key): name for key, name in use.items()}.get(wanted)
    return _find(RewardSpec, "problem type", wanted) if chosen is None else reward(chosen)


def serves(problem_type: str, use: Mapping[str, str] = _NO_USE) -> bool:
    """Whether some reward serves this problem type."""
    wanted = normal_problem_type(problem_type)
    return wanted in map(normal_problem_type, use) or bool(catalogue().offering(RewardSpec, "problem type", wanted))


def benchmark(name: str) -> BenchmarkSpec:
    return _find(BenchmarkSpec, "name", name)


def algorithm(name: str) -> AlgorithmSpec:
    return _find(AlgorithmSpec, "name", name)


def engine(name: str) -> EngineSpec:
    return _find(EngineSpec, "name", name)


def tracker(name: str) -> TrackerSpec:
    return _find(TrackerSpec, "name", name)


def budget(name: str) -> BudgetSpec:
    return _find(BudgetSpec, "name", name)


def command(name: str) -> CommandSpec:
    return _find(CommandSpec, "name", name)


def model_for(model_type: str) -> ModelSpec:
    """The family that serves a `model_type` of config.json."""
    return _find(ModelSpec, "model type", model_type)


def preset(name: str) -> str:
    """The repository id or directory that a preset stands for; for one whose files are made, the target that makes them."""
    spec, short = _find(ModelSpec, "preset", name), _split(name)[0]
    return spec.presets.get(short) or spec.made[short]


def maker(name: str) -> str | None:
    """The target that makes the files of this preset; None for a preset that lies somewhere, and for other names."""
    return _find(ModelSpec, "preset", name).made.get(_split(name)[0]) if is_preset(name) else None


def is_preset(name: str) -> bool:
    """Whether some plugin offers this preset; `name@distribution` counts."""
    short, distribution = _split(name)
    return any(_from(offer, distribution) for offer in catalogue().offering(ModelSpec, "preset", short))


def check_requirements(spec: Spec) -> None:
    """Raises RequestError with the pip line when a distribution that the spec requires isn't installed."""
    missing = missing_requirements(spec)
    if missing:
        here = installed_versions(missing)
        found = f" (here is {', '.join(here)})" if here else ""
        raise RequestError(f"{kind_of(spec)} {spec.name!r} needs {', '.join(missing)}, which is not installed{found}: {pip_line(missing)}")


def resolve(target: str) -> Any:
    """What `"package.module:attribute"` names, imported. Raises Evr1Error with the cause: it is the plugin's fault."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise Evr1Error(f"target {target!r} must read 'package.module:attribute'")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:
        raise Evr1Error(f"target {target!r} can't be imported: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise Evr1Error(f"target {target!r}: {module_name} has no {name!r}{nearest(name, _public(found))}")
        found = getattr(found, name)
    return found


def options(spec: Spec, given: Mapping[str, Any], where: str | None = None) -> BaseModel | None:
    """The options of a plugin, checked against its model; None for a plugin that has no options.

    `where` is the place of the options in a configuration, for messages; None is the usual one of the kind. Raises
    RequestError for an unknown key (with the nearest right one) or a value that can't be.
    """
    place = _OPTIONS_AT.get(type(spec), "").format(name=spec.name) if where is None else where
    target = getattr(spec, "config", None)
    if target is None:
        if given:
            prefix = f"{place}." if place else ""
            keys = ", ".join(f"{prefix}{key}" for key in given)
            raise RequestError(f"{keys}: {kind_of(spec)} {spec.name!r} has no options")
        return None
    from evr1_core.validation import validate

    return validate(resolve(target), given, prefix=place)


def build(spec: RewardSpec | BenchmarkSpec | TrackerSpec | CommandSpec, given: Mapping[str, Any] = _NO_USE) -> Any:
    """What a spec describes, ready to use: a class is made with its checked options, a function is given as it is."""
    check_requirements(spec)
    checked = options(spec, given)
    assert spec.target is not None
    found = resolve(spec.target)
    if not isinstance(found, type):
        if checked is not None:
            raise Evr1Error(f"{kind_of(spec)} {spec.name!r}: {spec.target} is a function and can't take the options of {spec.config}")  # type: ignore[union-attr]
        return found
    return found() if checked is None else found(checked)


def find_all(name: str) -> list[Offer]:
    """The offers of every kind with this name, else those that serve it as problem type, model type or preset."""
    short, distribution = _split(name)
    offers = [offer for offer in catalogue().offers if _from(offer, distribution)]
    named = [offer for offer in offers if offer.spec.name == short]
    keys = {short, normal_problem_type(short)}
    return named or [offer for offer in offers if any(key in keys for _, key in claims(offer.spec))]


def _find(kind: type[S], what: str, name: str) -> S:
    """The one spec of a kind that claims a key. Raises RequestError when there is none, or more than one."""
    short, distribution = _split(name)
    if what == "problem type":
        short = normal_problem_type(short)
    offers = [offer for offer in catalogue().offering(kind, what, short) if _from(offer, distribution)]
    if not offers:
        raise RequestError(_unknown(catalogue(), kind, what, name))
    if len(offers) > 1:
        raise RequestError(_conflict(kind, what, short, offers))
    return cast(S, offers[0].spec)


def _unknown(found: Catalogue, kind: type[Spec], what: str, name: str) -> str:
    noun = kind_of(kind) if what == "name" else f"{kind_of(kind)} for {what}" if what != "preset" else "preset"
    known = {key for spec in found.specs(kind) for claim, key in claims(spec) if claim == what}
    text = f"no {noun} {name!r}{nearest(name, known)}"
    for failure in found.failures:
        text += f"\nplugin {failure.plugin}, which failed to load, may offer it: {failure.reason}"
    if found.left_out:
        text += f"\nEVR1_LOAD_PLUGINS={os.environ.get('EVR1_LOAD_PLUGINS', '')} leaves out: {', '.join(found.left_out)}"
    return text


def _conflict(kind: type[Spec], what: str, key: str, offers: list[Offer]) -> str:
    """Who offers the same, and the line that settles it."""
    both = " and ".join(describe(offer) for offer in offers)
    first = offers[0]
    distributions = {offer.plugin.distribution for offer in offers}
    limit = "or set EVR1_LOAD_PLUGINS to the plugins that are meant: " + ", ".join(sorted({str(offer.plugin) for offer in offers}))
    if what == "problem type":
        name = first.spec.name if len({offer.spec.name for offer in offers}) > 1 else f"{first.spec.name}@{first.plugin.distribution}"
        settle = f"choose one in the configuration, for example `rewards.use: {{{key}: {name}}}`, {limit}"
    elif what == "model type" or len(distributions) == 1:
        settle = limit.removeprefix("or ")
    else:
        settle = f"write which one is meant, for example `{key}@{first.plugin.distribution}`, {limit}"
    return f"{kind_of(kind)}: {what} {key!r} is offered by {both}; {settle}"


def _split(name: str) -> tuple[str, str]:
    """`name@distribution` -> (name, distribution); a name alone has the distribution ""."""
    short, _, distribution = name.partition("@")
    return short, distribution


def _from(offer: Offer, distribution: str) -> bool:
    def normal(text: str) -> str:
        return text.lower().replace("_", "-").replace(".", "-")

    return not distribution or normal(offer.plugin.distribution) == normal(distribution)


def _public(found: Any) -> list[str]:
    return [name for name in dir(found) if not name.startswith("_")]


__all__ = [
    "Catalogue",
    "PluginRow",
    "algorithm",
    "benchmark",
    "budget",
    "build",
    "catalogue",
    "check_requirements",
    "command",
    "engine",
    "find_all",
    "is_preset",
    "missing_requirements",
    "model_for",
    "normal_problem_type",
    "options",
    "preset",
    "resolve",
    "reward",
    "reward_for",
    "serves",
    "tracker",
]

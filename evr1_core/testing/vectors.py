"""Numeric cases of algorithms, run against whatever is installed.

    python -m evr1_core.testing.vectors FILE [FILE ...]

A file is JSON: `header` documents the fields and holds the tolerances, `cases` are objects with `id`, `algorithm`, `hparams`,
`inputs` and `expected` (tests/vectors/algorithms.json is one). Every case runs in float64 and in float32. Each difference is
printed with the id of its case; the exit status is 1 when there is one. An output that nothing gives, and a hyper-parameter
that nothing knows, are differences too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evr1_core.errors import Evr1Error, RequestError

DTYPES = {"float64": torch.float64, "float32": torch.float32}
TOLERANCES = {"float64": (1e-7, 1e-9), "float32": (2e-4, 2e-5)}
"""(relative, absolute), where the header gives none."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a file."""

    id: str
    algorithm: str
    hparams: dict[str, Any]
    inputs: dict[str, Any]
    expected: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    id: str
    differences: tuple[str, ...]
    """In words, each with the precision it was found in; empty when the case passed."""


def read(path: Path) -> tuple[list[Case], dict[str, tuple[float, float]]]:
    """(cases, tolerances). Raises RequestError for a file that isn't of this form."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        tolerance = found.get("header", {}).get("tolerance", {})
        tolerances = {
            name: (float(tolerance[name]["rtol"]), float(tolerance[name]["atol"])) if name in tolerance else default
            for name, default in TOLERANCES.items()
        }
        cases = [Case(one["id"], one["algorithm"], one.get("hparams", {}), one["inputs"], one["expected"]) for one in found["cases"]]
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: can't be read as JSON: {error}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path}: not a file of cases, {type(error).__name__}: {error}") from None
    return cases, tolerances


def run(cases: Sequence[Case], tolerances: dict[str, tuple[float, float]] = TOLERANCES) -> Iterator[Outcome]:
    """The outcome of every case, in order. What a case raises is its difference."""
    from evr1_core.testing.vector_parts import produce

    for case in cases:
        differences: list[str] = []
        for name, dtype in DTYPES.items():
            try:
                found = produce(case, dtype)
            except (Evr1Error, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
                differences.append(f"{name}: {type(error).__name__}: {error}")
                continue
            relative, absolute = tolerances[name]
            slack = undecided(case, absolute)
            lines = [*compare(case.expected, found, relative, absolute, slack=slack), *masked_gradients(found, case.inputs)]
            differences += [f"{name}: {line}" for line in lines]
        yield Outcome(case.id, tuple(differences))


def undecided(case: Case, absolute: float) -> float:
    """Share of tokens whose expected advantage is the rounding error of a 0: such a token counts as clipped by its sign, or not at all."""
    rows, mask = case.expected.get("advantages", []), case.inputs.get("response_mask", [])
    tokens = [abs(value) for row, chosen in zip(rows, mask, strict=False) for value, one in zip(row, chosen, strict=False) if one]
    return sum(0 < value <= absolute for value in tokens) / max(1, len(tokens))


def compare(expected: Any, found: Any, relative: float, absolute: float, place: str = "", slack: float = 0.0) -> Iterator[str]:
    """Differences in words. Everything expected must be found; what else is found doesn't matter. Text and truth must be equal.

    `slack` is allowed to shares of clipped tokens.
    """
    if isinstance(expected, dict):
        for key, wanted in expected.items():
            where = f"{place}.{key}" if place else key
            if not isinstance(found, dict) or key not in found:
                yield f"{where}: nothing gives it"
            else:
                yield from compare(wanted, found[key], relative, absolute, where, slack)
    elif isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            yield f"{place}: {len(expected)} entries expected, found {len(found) if isinstance(found, list) else found!r}"
        else:
            for index, (wanted, given) in enumerate(zip(expected, found, strict=True)):
                yield from compare(wanted, given, relative, absolute, f"{place}[{index}]", slack)
    elif isinstance(expected, bool | str) or expected is None or isinstance(found, str | list | dict) or found is None:
        if expected != found:
            yield f"{place}: expected {expected!r}, found {found!r}"
    else:
        distance = abs(found - expected) if math.isfinite(found) else math.inf
        allowed = absolute + relative * abs(expected) + (slack if "clipfrac" in place else 0.0)
        if distance > allowed:
            yield f"{place}: expected {expected!r}, found {found!r}, off by {distance:.3g}"


def masked_gradients(found: Any, inputs: dict[str, Any]) -> Iterator[str]:
    """A gradient outside the mask is exactly 0, nothing near it."""
    for key, value in found.items():
        if key == "steps":
            for one, own in zip(value, inputs["steps"], strict=True):
                yield from masked_gradients(one, own)
        elif isinstance(value, dict):
            yield from masked_gradients(value, inputs)
        elif key.startswith("grad_"):
            chosen = torch.tensor(inputs["response_mask"]).bool()
            if bool((torch.tensor(value)[~chosen] != 0).any()):
                yield f"{key}: not exactly 0 outside the mask"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evr1_core.testing.vectors", description="Run numeric cases of algorithms.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    passed = failed = 0
    try:
        for path in given.files:
            cases, tolerances = read(path)
            for outcome in run(cases, tolerances):
                passed, failed = passed + (not outcome.differences), failed + bool(outcome.differences)
                for line in outcome.differences:
                    print(f"{outcome.id}: {line}")
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

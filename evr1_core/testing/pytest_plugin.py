"""Run the contracts of one plugin with pytest: one test per spec and rule.

    pytest -p evr1_core.testing.pytest_plugin --evr1-plugin my_plugin

The tests of the folder run too; `-k evr1-plugin` runs the contracts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evr1_core.discovery import catalogue, kind_of, missing_requirements, pip_line
from evr1_core.errors import Evr1Error, nearest
from evr1_core.testing.contracts import ContractBroken, check_plugin, contracts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("evr1").addoption(
        "--evr1-plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="run the contracts of the plugin with this entry point (may be given several times)",
    )


class Contract(pytest.Item):
    """One rule of one spec."""

    def __init__(self, *, check: Callable[[], Any], **known: Any) -> None:
        super().__init__(**known)
        self.check = check

    def runtest(self) -> None:
        self.check()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, ContractBroken | Evr1Error):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.name


@pytest.hookimpl(tryfirst=True)  # before -k and -m choose among the tests
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for plugin in config.getoption("--evr1-plugin") or ():
        for name, check in _checks(plugin):
            items.append(Contract.from_parent(session, name=f"evr1-plugin {plugin}: {name}", check=check))


def _checks(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    found = catalogue()
    plugins = {offer.plugin.name: offer.plugin for offer in found.offers} | {
        failure.plugin.name: failure.plugin for failure in found.failures
    }
    if name not in plugins:
        raise pytest.UsageError(f"--evr1-plugin: no plugin {name!r} is installed{nearest(name, plugins)}")
    yield "module", lambda: check_plugin(plugins[name].module)
    for spec in (offer.spec for offer in found.offers if offer.plugin.name == name):
        missing = missing_requirements(spec)
        for rule, check in contracts(spec):
            reason = f"not installed: {pip_line(missing)}"
            skip = missing and rule != "well-formed"
            yield f"{kind_of(spec)} {spec.name} {rule}", (lambda reason=reason: pytest.skip(reason)) if skip else check

"""What plugin authors test with. In a terminal, over everything that one entry point offers:

    pytest -p evr1_core.testing.pytest_plugin --evr1-plugin my_plugin

or in a test of one's own: `check_reward(spec)` and its sisters, each of which raises ContractBroken with the cause.
"""

from evr1_core.testing.contracts import (
    ContractBroken,
    Example,
    check_algorithm,
    check_benchmark,
    check_cases,
    check_command,
    check_engine,
    check_model,
    check_plugin,
    check_reward,
    check_tracker,
    contracts,
)
from evr1_core.testing.fixtures import ABSURD, installed, make_distribution, sample

__all__ = [
    "ABSURD",
    "ContractBroken",
    "Example",
    "check_algorithm",
    "check_benchmark",
    "check_cases",
    "check_command",
    "check_engine",
    "check_model",
    "check_plugin",
    "check_reward",
    "check_tracker",
    "contracts",
    "installed",
    "make_distribution",
    "sample",
]

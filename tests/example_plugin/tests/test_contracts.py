"""The contracts of evr1 over everything that this plugin offers, and examples of its own."""

from __future__ import annotations

from evr1_example import plugin

from evr1_core.testing import Example, check_algorithm, check_benchmark, check_model, check_plugin, check_reward, sample


def test_plugin() -> None:
    assert [spec.name for spec in check_plugin("evr1_example.plugin")] == ["colour", "swatches", "example-sign", "example"]


def test_reward() -> None:
    red = sample("colour", "red")
    examples = [
        Example(red, "red", 1.0),
        Example(red, " #FF0000. ", 1.0),
        Example(sample("colour", "black"), "white", 0.0),
        Example(sample("colour", "#000000"), "blue", 1 - (1 / 3) ** 0.5),
        Example(red, "no colour at all", None),
        Example(sample("colour", "loud"), "red", None),
    ]
    check_reward(plugin.evr1_rewards()[0], examples)


def test_benchmark() -> None:
    check_benchmark(plugin.evr1_benchmarks()[0])


def test_algorithm() -> None:
    check_algorithm(plugin.evr1_algorithms()[0])


def test_model() -> None:
    check_model(plugin.evr1_models()[0])

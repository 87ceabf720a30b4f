"""What this plugin offers. Read at every start of evr1, so it imports nothing heavy."""

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import AlgorithmSpec, BenchmarkSpec, ModelSpec, RewardSpec


@hookimpl
def evr1_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            name="colour",
            problem_types=("colour", "color"),
            target="evr1_example.colour:score",
            summary="closeness of a colour, by name or as #rrggbb",
        )
    ]


@hookimpl
def evr1_benchmarks() -> list[BenchmarkSpec]:
    return [
        BenchmarkSpec(
            name="swatches",
            target="evr1_example.swatches:Swatches",
            summary="the colour of a plain picture",
            problem_types=("colour",),
            size=4,
        )
    ]


@hookimpl
def evr1_algorithms() -> list[AlgorithmSpec]:
    return [
        AlgorithmSpec(
            name="example-sign",
            advantage="evr1_example.sign:advantage",
            loss="evr1_example.sign:loss",
            config="evr1_example.sign:Options",
            summary="better or worse than the group's mean, by the same step for all",
        )
    ]


@hookimpl
def evr1_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            name="example",
            model_types=(),
            target=None,
            summary="presets for families that evr1 knows",
            presets={"example-tiny": "models/example-tiny"},
        )
    ]

"""Built-in model families and their presets."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import BudgetSpec, ModelSpec
from evr1_models.budgets import BUDGETS

TRANSFORMERS = "transformers>=5.19,<6"


def _qwen3_vl_presets() -> dict[str, str]:
    sizes = ("2B", "4B", "8B", "32B", "30B-A3B", "235B-A22B")
    presets = {f"qwen3-vl-{size.lower()}": f"Qwen/Qwen3-VL-{size}-Instruct" for size in sizes}
    presets.update({f"qwen3-vl-{size.lower()}-thinking": f"Qwen/Qwen3-VL-{size}-Thinking" for size in sizes})
    return presets


@hookimpl
def evr1_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            name="qwen3-vl",
            model_types=("qwen3_vl",),
            target="evr1_models.qwen3_vl:Qwen3VL",
            summary="Qwen3-VL: frames with written timestamps, patch 16, deepstack",
            presets={name: place for name, place in _qwen3_vl_presets().items() if "-a" not in name},
            made={"tiny-qwen3-vl": "evr1_models.tiny.qwen3_vl:make_tiny_qwen3_vl"},
            requires=(TRANSFORMERS,),
        ),
    ]


@hookimpl
def evr1_budgets() -> list[BudgetSpec]:
    return BUDGETS

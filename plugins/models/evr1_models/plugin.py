"""Built-in model families and their presets."""

from __future__ import annotations

from collections.abc import Sequence

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import BudgetSpec, ModelSpec
from evr1_models.budgets import BUDGETS

TRANSFORMERS = "transformers>=5.19,<5.21"


QWEN3_VL = ("2B", "4B", "8B", "32B")
QWEN3_VL_MOE = ("30B-A3B", "235B-A22B")
QWEN3_5 = ("0.8B", "2B", "4B", "9B", "27B")
QWEN3_5_MOE = ("35B-A3B", "122B-A10B", "397B-A17B")


def _qwen3_vl(sizes: Sequence[str]) -> dict[str, str]:
    presets = {f"qwen3-vl-{size.lower()}": f"Qwen/Qwen3-VL-{size}-Instruct" for size in sizes}
    return presets | {f"qwen3-vl-{size.lower()}-thinking": f"Qwen/Qwen3-VL-{size}-Thinking" for size in sizes}


def _qwen3_5(sizes: Sequence[str]) -> dict[str, str]:
    return {f"qwen3.5-{size.lower()}": f"Qwen/Qwen3.5-{size}" for size in sizes}


@hookimpl
def evr1_models() -> list[ModelSpec]:
    return [
        ModelSpec(
            name="qwen2-vl",
            model_types=("qwen2_vl",),
            target="evr1_models.qwen2_vl:Qwen2VL",
            summary="Qwen2-VL: a video is one run of tokens, patch 14",
            presets={f"qwen2-vl-{size.lower()}": f"Qwen/Qwen2-VL-{size}-Instruct" for size in ("2B", "7B", "72B")},
            made={"tiny-qwen2-vl": "evr1_models.tiny.qwen2_vl:make_tiny_qwen2_vl"},
            requires=(TRANSFORMERS,),
        ),
        ModelSpec(
            name="qwen2.5-vl",
            model_types=("qwen2_5_vl",),
            target="evr1_models.qwen2_5_vl:Qwen2_5VL",
            summary="Qwen2.5-VL: positions in true time, windowed vision attention, patch 14",
            presets={f"qwen2.5-vl-{size.lower()}": f"Qwen/Qwen2.5-VL-{size}-Instruct" for size in ("3B", "7B", "32B", "72B")},
            made={"tiny-qwen2-5-vl": "evr1_models.tiny.qwen2_5_vl:make_tiny_qwen2_5_vl"},
            requires=(TRANSFORMERS,),
        ),
        ModelSpec(
            name="qwen3-vl",
            model_types=("qwen3_vl",),
            target="evr1_models.qwen3_vl:Qwen3VL",
            summary="Qwen3-VL: frames with written timestamps, patch 16, deepstack",
            presets=_qwen3_vl(QWEN3_VL),
            made={"tiny-qwen3-vl": "evr1_models.tiny.qwen3_vl:make_tiny_qwen3_vl"},
            requires=(TRANSFORMERS,),
        ),
        ModelSpec(
            name="qwen3-vl-moe",
            model_types=("qwen3_vl_moe",),
            target="evr1_models.qwen3_vl_moe:Qwen3VLMoe",
            summary="Qwen3-VL with a mixture of experts in every layer",
            presets=_qwen3_vl(QWEN3_VL_MOE),
            made={"tiny-qwen3-vl-moe": "evr1_models.tiny.qwen3_vl_moe:make_tiny_qwen3_vl_moe"},
            requires=(TRANSFORMERS,),
        ),
        ModelSpec(
            name="qwen3.5",
            model_types=("qwen3_5",),
            target="evr1_models.qwen3_5:Qwen3_5",
            summary="Qwen3.5: media as in Qwen3-VL, gated delta layers between layers of attention; Qwen3.6-27B too",
            presets=_qwen3_5(QWEN3_5) | {"qwen3.6-27b": "Qwen/Qwen3.6-27B"},
            made={"tiny-qwen3-5": "evr1_models.tiny.qwen3_5:make_tiny_qwen3_5"},
            requires=(TRANSFORMERS,),
        ),
        ModelSpec(
            name="qwen3.5-moe",
            model_types=("qwen3_5_moe",),
            target="evr1_models.qwen3_5:Qwen3_5Moe",
            summary="Qwen3.5 with a mixture of experts in every layer; Qwen3.6-35B-A3B too",
            presets=_qwen3_5(QWEN3_5_MOE) | {"qwen3.6-35b-a3b": "Qwen/Qwen3.6-35B-A3B"},
            made={"tiny-qwen3-5-moe": "evr1_models.tiny.qwen3_5:make_tiny_qwen3_5_moe"},
            requires=(TRANSFORMERS,),
        ),
    ]


@hookimpl
def evr1_budgets() -> list[BudgetSpec]:
    return BUDGETS

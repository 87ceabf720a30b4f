"""The built-in rewards."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import RewardSpec


@hookimpl
def evr1_rewards() -> list[RewardSpec]:
    return [
        RewardSpec(
            name="multiple-choice",
            problem_types=(
                "multiple-choice",
                "multi-choice",
                "multiple-choice-question",
                "mc",
                "mcq",
                "multi-select",
                "multiple-select",
            ),
            target="evr1_rewards.multiple_choice:MultipleChoice",
            config="evr1_rewards.multiple_choice:MultipleChoiceOptions",
            summary="label or option text against the gold options; single and multi-select",
        ),
        RewardSpec(
            name="temporal-grounding",
            problem_types=("temporal-grounding", "temporal-video-grounding"),
            target="evr1_rewards.temporal_grounding:TemporalGrounding",
            config="evr1_rewards.temporal_grounding:TemporalGroundingOptions",
            summary="time spans in JSON, clock times or words against the gold spans; IoU of the two sets",
        ),
        RewardSpec(
            name="spatial-temporal-grounding",
            problem_types=("spatial-temporal-grounding", "spatio-temporal-grounding", "stvg", "tracking"),
            target="evr1_rewards.spatial_temporal_grounding:SpatialTemporalGrounding",
            config="evr1_rewards.spatial_temporal_grounding:SpatialTemporalGroundingOptions",
            summary="time span and a box at each time: half temporal IoU, half mean box IoU; tracking is boxes only",
        ),
        RewardSpec(
            name="spatial-grounding",
            problem_types=("spatial-grounding",),
            target="evr1_rewards.spatial_grounding:SpatialGrounding",
            config="evr1_rewards.spatial_grounding:SpatialGroundingOptions",
            summary="boxes in declared coordinate frames against the gold boxes; IoU of the best one-to-one matching",
            requires=("scipy>=1.14",),
        ),
    ]

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
    ]

"""The built-in rewards."""

from __future__ import annotations

from evr1_core.hookspecs import hookimpl
from evr1_core.specs import RewardSpec

_REWARDS = (
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
        name="numerical",
        problem_types=("numerical", "numeric", "number", "count", "counting", "regression"),
        target="evr1_rewards.numerical:Numerical",
        config="evr1_rewards.numerical:NumericalOptions",
        summary="one number against the gold number: within a tolerance, exactly, or mean relative accuracy (regression)",
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
    RewardSpec(
        name="open-ended",
        problem_types=("open-ended", "free-form", "video-qa", "video-description", "caption", "captioning", "description"),
        target="evr1_rewards.open_ended:OpenEnded",
        config="evr1_rewards.open_ended:OpenEndedOptions",
        summary="free text against the gold text: ROUGE in any script, equality, or graded by the judge",
        requires=("rouge-score>=0.1.2", "rapidfuzz>=3.10"),
    ),
    RewardSpec(
        name="math",
        problem_types=("math", "mathematics"),
        target="evr1_rewards.math_answer:Math",
        config="evr1_rewards.multiple_choice:MultipleChoiceOptions",
        summary="a formula or number against the gold one: exact arithmetic, symbolic equality; choices where there are options",
        requires=("math-verify>=0.9", "antlr4-python3-runtime>=4.9.3"),
    ),
    RewardSpec(
        name="ocr",
        problem_types=("ocr",),
        target="evr1_rewards.ocr:Ocr",
        config="evr1_rewards.ocr:OcrOptions",
        summary="text that is read against the gold text: word error rate, character error rate or equality",
        requires=("rapidfuzz>=3.10",),
    ),
    RewardSpec(
        name="boolean",
        problem_types=("boolean", "binary-classification", "yes-no", "true-false"),
        target="evr1_rewards.boolean:Boolean",
        config="evr1_rewards.multiple_choice:MultipleChoiceOptions",
        summary="yes or no against the gold polarity; rows with options are scored as multiple choice",
    ),
    RewardSpec(
        name="code",
        problem_types=("code", "coding", "python", "python-code", "code-python"),
        target="evr1_rewards.python_code:PythonCode",
        config="evr1_rewards.code:CodeOptions",
        summary="Python: the row's tests, each in a sandbox; without tests likeness to the gold code's syntax tree",
    ),
    RewardSpec(
        name="svg",
        problem_types=("svg", "svg-code", "code-svg"),
        target="evr1_rewards.svg:SvgCode",
        config="evr1_rewards.code:CodeOptions",
        template="code",
        summary="SVG: likeness of the two drawings, of their elements and words",
        requires=("resvg_py>=0.5 | cairosvg>=2.7", "defusedxml>=0.7"),
    ),
    RewardSpec(
        name="html",
        problem_types=("html", "html-code", "code-html"),
        target="evr1_rewards.html:HtmlCode",
        config="evr1_rewards.code:CodeOptions",
        template="code",
        summary="HTML: likeness of the two document trees in structure, text and attributes",
        requires=("selectolax>=0.3.21",),
    ),
    RewardSpec(
        name="preference",
        problem_types=("preference", "llava", "critic", "pairwise"),
        target="evr1_rewards.preference:Preference",
        config="evr1_rewards.preference:PreferenceOptions",
        summary="verdict on two responses, or a rating on a scale, against the gold one; or graded by the judge",
    ),
)


@hookimpl
def evr1_rewards() -> list[RewardSpec]:
    return list(_REWARDS)

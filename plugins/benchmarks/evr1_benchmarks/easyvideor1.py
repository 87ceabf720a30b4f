"""The converted benchmark files of EasyVideoR1 (arXiv 2604.16893, github.com/cyuQ1n/EasyVideoR1, `eval/`) and its prompts.

A row has `problem_id`, `problem`, `problem_type`, `options` (lines with labels), `solution` (`<answer>B</answer>`), `path`, and
columns of its benchmark. Rows with `start` and `end` are about that part of the video; its own evaluation shows the whole video.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import printed
from evr1_core.data.media_fields import MARK
from evr1_core.errors import RequestError
from evr1_core.plugins import normal_problem_type
from evr1_core.types import MediaRef, Sample, Wording

FOLDERS = {
    "holmes": "Video-Holmes",
    "lvbench": "LVBench",
    "longvideobench": "LongVideoBench",
    "mmvu": "MMVU",
    "mvbench": "MVBench",
    "tempcompass": "TempCompass",
    "vsibench": "VSI-Bench",
    "videommmu": "VideoMMMU",
    "mlvu": "MLVU_Test",
    "mlvu-dev": "MLVU_dev/MLVU_dev",
    "videomme": "Video-MME",
    "videomathqa": "VideoMathQA",
    "vcrbench": "VCR-Bench/v1/videos",
    "videoreasonbench": "VideoReasonBench/videos",
    "longvideoreason": "longvila_videos",
    "minerva": "Minderva",
    "stvg": "ST-Align-Benchmark",
    "charades_sta": "Charades_sta/Charades_v1_480",
    "motionbench": "MotionBench-official/MotionBench",
    "ovobench": "OVO-Bench/chunked_videos",
    "odvbench": "ODV-Bench/clips",
    "livesports3k_qa": "LiveSports-3K-QA/clips",
}
"""Where its scripts look for the videos of a file, beside the folder `valid_data` of the files."""

TASK_TYPES = {"REC": "counting", "SSR": "yes-no", "CRR": "yes-no"}
"""Types of its own: how they are scored here."""

_LABEL = re.compile(r"\s*([A-Z])\s*[.:]\s*(.*)", re.DOTALL)


def samples(root: Path, names: Sequence[str]) -> list[Sample]:
    """Rows of the first of these files that is in `root`, or of `root` itself where it is a file.

    Ids are `problem_id`, with `mbinary_id` or a count behind it where a file gives one id to several rows.
    Raises RequestError for a file or a column that is missing.
    """
    if not names:
        raise RequestError("EasyVideoR1 has no file for this benchmark; read the official release")
    path = root if root.is_file() else files.find(root, *(place for name in names for place in (name, f"valid_data/{name}", f"*/{name}")))
    folders = _folders(path)
    found = files.each(path, files.rows(path), lambda row, number: _sample(row, path, number, folders))
    seen: Counter[str] = Counter()
    for at, sample in enumerate(found):
        seen[sample.id] += 1
        if seen[sample.id] > 1:
            found[at] = replace(sample, id=f"{sample.id}-{seen[sample.id]}")
    return found


def _folders(path: Path) -> list[Path]:
    stem = re.sub(r"_with_image$|-(all|mc|test)$", "", path.stem)
    beside = [base / FOLDERS[stem] for base in (path.parent.parent, path.parent) if stem in FOLDERS]
    return [*(folder for folder in beside if folder.is_dir()), path.parent]


def _sample(row: Mapping[str, Any], path: Path, number: int, folders: Sequence[Path]) -> Sample:
    kind = files.text_of(row, "problem_type", path, number)
    lines = tuple(files.texts_of(row, "options", path, number)) if row.get("options") else ()
    video = files.text_of(row, "path", path, number)
    media = [MediaRef(files.video(folders, video), "video", *_part(row.get("start"), row.get("end")))]
    if row.get("image_path"):
        media.append(MediaRef(str((Path(media[0].path.removesuffix(str(Path(video)))) / row["image_path"]).absolute()), "image"))
    name = str(files.field(row, "problem_id", path, number))
    problem_type = TASK_TYPES.get(kind) or normal_problem_type(kind)
    taken = {"problem", "problem_type", "options", "solution", "path", "data_source", "data_type", "image_path", "start", "end"}
    extra = {key: value for key, value in row.items() if key not in taken and value not in (None, "")}
    return Sample(
        id=f"{name}-{row['mbinary_id']}" if row.get("mbinary_id") else name,
        problem=str(files.field(row, "problem", path, number) or ""),
        answer=_answer(row, path, number, problem_type),
        problem_type=problem_type,
        media=tuple(media),
        options=_options(lines),
        source=str(row.get("data_source") or path.stem),
        scoring={"metric": "judge"} if problem_type == "open-ended" else {},
        extra={**extra, **({"option_lines": lines} if lines else {}), **({"ovo_task": kind} if kind in TASK_TYPES else {})},
    )


def _part(start: Any, end: Any) -> tuple[float | None, float | None]:
    if isinstance(start, (int, float)) and isinstance(end, (int, float)) and end > start:
        return float(start), float(end)
    return None, None


def _options(lines: Sequence[str]) -> dict[str, str] | tuple[str, ...] | None:
    """Options by their labels, which are not always in order."""
    found = [_LABEL.fullmatch(line) for line in lines]
    labelled = {match.group(1): match.group(2).strip() for match in found if match}
    return (labelled if len(labelled) == len(lines) else tuple(lines)) or None


def _answer(row: Mapping[str, Any], path: Path, number: int, problem_type: str) -> Any:
    solution = files.field(row, "solution", path, number)
    try:
        return _gold(solution, problem_type)
    except (ValueError, KeyError) as error:
        raise RequestError(
            f"{path}, record {number}: solution {str(solution)[:80]!r} holds no answer of a {problem_type} question"
        ) from error


def _gold(solution: Any, problem_type: str) -> Any:
    """The content of the answer tag. Those of Charades-STA stand between other marks, as JSON."""
    if solution is None:
        return None
    text = str(solution)
    if problem_type.endswith("grounding"):
        found = json.loads(text[text.index("{") : text.rindex("}") + 1])
        return found if problem_type.startswith("spatial") else {"time": found["time"]}
    tag = re.search(r"<answer>(.*)</answer>", text, re.DOTALL)
    return (tag.group(1) if tag else text).strip()


def wording(sample: Sample, thinking: bool, qwen25: bool = False) -> Wording:
    """The prompt of its evaluation, for Qwen3-VL or for Qwen2.5-VL (which always reasons there): videos, images, text."""
    order = sorted(range(len(sample.media)), key=lambda place: sample.media[place].kind == "image")
    hint = "The image for this question is at the end of the video.\n" if sample.images else ""
    return Wording((*order, hint + _text(sample, thinking, qwen25)))


def _text(sample: Sample, thinking: bool, qwen25: bool) -> str:
    question = MARK.sub("", sample.problem)
    task = sample.extra.get("ovo_task", sample.extra.get("task"))
    if task in TASKS and sample.problem_type != "multiple-choice":
        number = task == "REC"
        question = question if number else sample.extra.get("asked", question)
        if qwen25:
            form = PONDER + (PONDER_NUMBER if number else PONDER_YES_NO)
        elif thinking:
            form = BRIEFLY + (THEN_NUMBER if number else THEN_YES_NO)
        else:
            form = ONLY_NUMBER if number else ONLY_YES_NO
        return TASKS[task].format(question) + form
    chosen = sample.problem_type == "multiple-choice"
    if chosen:
        lines = sample.extra.get("option_lines") or (printed(sample.options).split("\n") if isinstance(sample.options, dict) else ())
        question = f"{question} Possible answer choices:\n" + "".join(f"{line}\n" for line in lines)
    kind = sample.problem_type if sample.problem_type in PONDER_TYPES else "free-form"
    if qwen25:
        return question + PONDER + PONDER_TYPES[kind]
    if thinking:
        return REASON_CHOICE + question if chosen else REASON + question + REASON_TYPES.get(kind, REASON_TYPES["free-form"])
    return (CHOOSE if chosen else ANSWER) + question + DIRECT_TYPES.get(kind, BEST)


CHOOSE = (
    "Select the best answer to the following multiple-choice question based on the video.\n"
    "Respond with only the letter (A, B, C, or D) of the correct option.\nQuestion: "
)
REASON_CHOICE = (
    "You should watch and learn the video content. Then apply what you learned to select the best answer to the following "
    "multiple-choice question based on the video.\nBegin by explaining your reasoning process briefly.\nConclude by stating the final "
    'answer using the following format: "Therefore, the final answer is: $LETTER" (without quotes), where $LETTER must be one of the '
    "options.\nQuestion: "
)
ANSWER = "Answer the following question based on the video.\nQuestion: "
REASON = (
    "You should watch and learn the video content. Then apply what you learned to answer the following question based on the video.\n"
    "Begin by explaining your reasoning process briefly.\nQuestion: "
)
BEST = "\nThe best answer is: "

_THEN = '\nConclude by stating the final answer using the following format: "Therefore, the final answer is: {}" (without quotes){}.'
_SPAN = "the time span in seconds as JSON within the <answer>...</answer> tags.\n"
_SPAN_EXAMPLE = 'Example:\n<answer>{"time": [12.3, 25.7]}</answer>\n'
_BOXES = (
    "the time span in seconds and bounding boxes as JSON within the <answer>...</answer> tags.\n"
    "You MUST output one bounding box for every integer second within the given time span (inclusive).\nExample:\n"
)
_BOXES_EXAMPLE = (
    '<answer>{{"time": [{}], "boxes": {{"9": [317, 422, 582, 997], "10": [332, 175, 442, 369], "11": [340, 180, 450, 370]}}}}</answer>\n'
    "Note: Each key in 'boxes' must be an integer second within the span, and its value must be a 4-number bounding box [x1, y1, x2, y2]."
)
DIRECT_TYPES = {
    "temporal-grounding": f"\nPlease provide {_SPAN}{_SPAN_EXAMPLE}",
    "spatial-temporal-grounding": f"\nPlease provide {_BOXES}{_BOXES_EXAMPLE.format('8.125, 13.483')}",
}
REASON_TYPES = {
    "numerical": _THEN.format("$NUMBER", ", where $NUMBER is your numerical answer"),
    "regression": _THEN.format("$NUMBER", ", where $NUMBER is your numerical answer"),
    "ocr": _THEN.format("$TEXT", ", where $TEXT is the recognized text"),
    "free-form": _THEN.format("$ANSWER", ""),
    "temporal-grounding": f"\nConclude by providing {_SPAN}{_SPAN_EXAMPLE}",
    "spatial-temporal-grounding": f"\nConclude by providing {_BOXES}{_BOXES_EXAMPLE.format('8, 13')}",
}

PONDER = (
    "\nPlease think about this question as if you were a human pondering deeply. Engage in an internal dialogue using expressions such "
    "as 'let me think', 'wait', 'Hmm', 'oh, I see', 'let's break it down', etc, or other natural language thought expressions It's "
    "encouraged to include self-reflection or verification in the reasoning process. Provide your detailed reasoning between the "
    "<think> and </think> tags, and then give your final answer between the <answer> and </answer> tags."
)
_TAGS = " within the <answer> </answer> tags."
_PONDER_VALUE = f" Please provide the numerical value (e.g., 42 or 3.14){_TAGS}"
PONDER_TYPES = {
    "multiple-choice": f" Please provide only the single option letter (e.g., A, B, C, D, etc.){_TAGS}",
    "numerical": _PONDER_VALUE,
    "regression": _PONDER_VALUE,
    "ocr": f" Please transcribe text from the image/video clearly and provide your text answer{_TAGS}",
    "free-form": f" Please provide your text answer{_TAGS}",
    "temporal-grounding": " Please provide the time span in seconds as JSON within the <answer>...</answer> tags. "
    'Example: <answer>{"time": [12.3, 25.7]}</answer>',
    "spatial-temporal-grounding": " Please provide the time span in seconds and bounding boxes as JSON within the <answer>...</answer> "
    'tags. Example: <answer>{"time": [8.125, 13.483], "boxes": {"9": [317, 422, 582, 997]}}</answer>',
}

TASKS = {
    "REC": "You're watching a video in which people may perform a certain type of action repetively. The person performing this kind of "
    "action are referred to as 'they' in the following statement.\nYou're task is to count how many times have different people in the "
    "video perform this kind of action in total.\nOne complete motion counts as one.\nNow, answer the following question: {}",
    "SSR": "You're watching a tutorial video which contain a sequential of steps.\nThe following is one step from the whole procedures:\n"
    "{}\nYour task is to determine if the man or woman in the video is currently performing this step.",
    "CRR": "You're responsible of answering questions based on the video content.\nThe following question are relevant to the latest "
    "frames, i.e. the end of the video.\n{}\nDecide whether existing visual content, especially latest frames, i.e. frames that near the "
    "end of the video, provide enough information for answering the question.",
}
"""Tasks of OVO-Bench as its evaluation words them."""
_ALONE = "\nDo not include any additional text or explanation in your response."
_COUNT = "as a single number (e.g., 0, 1, 2, 3…)"
BRIEFLY = "\nBegin by explaining your reasoning process briefly, describing what you observe in the video."
ONLY_NUMBER = f"\nProvide your answer {_COUNT} indicating the total count.{_ALONE}"
ONLY_YES_NO = f'\nAnswer only with "Yes" or "No".{_ALONE}'
THEN_NUMBER = _THEN.format("$NUMBER", f", where $NUMBER is the total count {_COUNT}")
THEN_YES_NO = _THEN.format("$ANSWER", ', where $ANSWER is either "Yes" or "No"')
PONDER_NUMBER = f" Please provide a single number (e.g., 0, 1, 2, 3…) indicating the total count{_TAGS}"
PONDER_YES_NO = f' Please answer only "Yes" or "No"{_TAGS}'

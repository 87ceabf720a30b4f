"""TempCompass (arXiv 2403.00476): 7,540 questions about 410 videos in four formats and five temporal aspects.

Protocol: github.com/llyx97/TempCompass (`questions/`, `meta_info.json`, `eval_*.py`). Its rules read most answers, GPT-3.5 the rest; the
official number here is that of its option `--disable_llm`, where the rest is wrong. Captions are graded by a judge alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evr1_benchmarks import files
from evr1_benchmarks.options import noted, split_question
from evr1_benchmarks.release import Release
from evr1_core.data.options import label_form
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError
from evr1_core.evaluate.benchmark import Official, Record, Report, accuracy, macro, mean, official_of, strict_of, table
from evr1_core.types import MediaRef, Sample, Wording

FORMATS = ("multi-choice", "yes_no", "caption_matching", "captioning")
BEST = "\nPlease directly give the best option:"
SUFFIXES = {"multi-choice": BEST, "caption_matching": BEST, "yes_no": "\nPlease answer yes or no:", "captioning": ""}


class TempCompass(Release):
    variants = ("all", *FORMATS)
    converted = ("tempcompass.json",)

    def read(self, root: Path, variant: str) -> list[Sample]:
        path, choices = _questions(root, "multi-choice")
        bare = path.suffix == ".parquet" and not (root / "meta_info.json").is_file()
        aspects = None if bare else files.load(files.find(root, "meta_info.json", "questions/meta_info.json"))
        folders = files.places(root, ("videos", "video"))
        found: list[Sample] = []
        for form in FORMATS if variant == "all" else (variant,):
            path, videos = _questions(root, form)
            for video, dimensions in videos.items():
                media = (MediaRef(files.video(folders, video), "video"),)
                for dimension, questions in dimensions.items():
                    extra = {"format": form, "dimension": dimension, "aspect": _aspect(aspects, video, dimension, path)}
                    for number, row in enumerate(questions):
                        fields = _fields(form, row, path, number, choices.get(video, {}).get(dimension))
                        name = f"{video}-{dimension}-{number}-{form}"
                        found.append(
                            Sample(id=name, media=media, source="tempcompass", **{**fields, "extra": {**extra, **fields["extra"]}})
                        )
        return found

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        text = sample.extra.get("as_printed", sample.problem)
        return Wording((0, text + SUFFIXES[sample.extra.get("format", "multi-choice")]))

    def official(self, sample: Sample, text: str) -> Official | None:
        form, said = sample.extra.get("format", "multi-choice"), text.strip()
        if form == "captioning":
            return None
        gold = str(sample.extra.get("gold", sample.answer))
        read = {"multi-choice": _read_choice, "yes_no": _read_yes_no, "caption_matching": _read_caption}[form](said, sample)
        return Official(read, float(bool(read) and read == (gold if form == "yes_no" else str(sample.answer))))

    def aggregate(self, records: Sequence[Record]) -> Report:
        ruled = [record for record in records if record.official]
        tables = {"format": table(records, _form)}
        for form in dict.fromkeys(map(_form, records)):
            part = [record for record in records if _form(record) == form]
            tables[f"{form}: dimension"] = table(part, lambda record: record.sample.extra.get("dimension", "none"))
            tables[f"{form}: aspect"] = table(part, lambda record: record.sample.extra.get("aspect", "none"))
        official = {"mean of formats": macro(records, strict_of, lambda record: (_form(record),))}
        if ruled:
            official["rules only, without captioning"] = mean(ruled, official_of)
            official["read by a rule"] = mean(ruled, lambda record: float(bool(record.official and record.official.answer)))
        return Report(accuracy(records), "accuracy over all questions", tables=tables, official=official)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        other = [sample.id for sample in samples if sample.extra.get("own_gold") not in (None, sample.extra.get("gold"))]
        return noted("captioning questions that name another answer than the multi-choice question that is scored", other)


def _questions(root: Path, form: str) -> tuple[Path, dict[str, dict[str, list[dict[str, Any]]]]]:
    """Video -> dimension -> questions: of the repository's JSON file, or of the hub's table, where they stand in the same order."""
    path = files.find(root, f"questions/{form}.json", f"{form}.json", f"{form}/test-*.parquet")
    if path.suffix == ".json":
        found = files.load(path)
        if not isinstance(found, dict):
            raise RequestError(f"{path}: must hold the questions by video and dimension")
        return path, found
    videos: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for number, row in enumerate(files.rows(path), 1):
        video, dimension = (files.text_of(row, name, path, number) for name in ("video_id", "dim"))
        videos.setdefault(video, {}).setdefault(dimension, []).append(row)
    return path, videos


def _aspect(aspects: dict[str, Any] | None, video: str, dimension: str, path: Path) -> str:
    """One of 11 finer aspects; `none` without meta_info.json, which the hub doesn't have."""
    if dimension == "order":
        return "order"
    if aspects is None:
        return "none"
    found = (aspects.get(video) or {}).get("eval_dim", {}).get(dimension)
    if not found:
        raise RequestError(f"{path}: meta_info.json has no eval_dim {dimension!r} for video {video!r}")
    return found["type"]


def _fields(form: str, row: dict[str, Any], path: Path, number: int, choices: list[dict[str, str]] | None) -> dict[str, Any]:
    """Question, options and gold answer of one row as the rewards read them."""
    text, gold = files.text_of(row, "question", path, number), files.text_of(row, "answer", path, number)
    extra: dict[str, Any] = {"as_printed": text, "gold": gold}
    if form == "yes_no":
        return {"problem": text, "answer": gold, "problem_type": "yes-no", "extra": extra}
    if form == "captioning":
        if not choices:
            raise RequestError(
                f"{path}: multi-choice.json has no question of the same video and dimension as record {number}: {text[:60]!r}"
            )
        key = choices[0]["answer"]
        # The caption is right where it answers the multi-choice question.
        told = f"The caption makes clear that the answer to this question is {key!r}:\n{choices[0]['question']}"
        extra |= {"gold": key, "own_gold": gold}
        return {"problem": text, "answer": told, "problem_type": "captioning", "scoring": {"metric": "judge"}, "extra": extra}
    if form == "multi-choice":
        problem, options = split_question(text)
    else:
        problem, _, rest = text.partition("\n")
        options = dict(pair for line in rest.split("\n") if (pair := label_form(line)))
    label = label_form(gold)
    return {
        "problem": problem,
        "options": options,
        "answer": label[0] if label else gold,
        "problem_type": "multiple-choice",
        "extra": extra,
    }


def _read_choice(said: str, sample: Sample) -> str:
    """The letter of an answer that is the gold text, a letter, or begins with `A.` or `A)`."""
    if said == sample.extra.get("gold"):
        return str(sample.answer)
    return said[0] if said[:1] in ("A", "B", "C", "D") and (len(said) == 1 or said[1] in ".)") else ""


def _read_yes_no(said: str, sample: Sample) -> str:
    return next((word for word in ("yes", "no") if said.lower().startswith(word)), "")


def _read_caption(said: str, sample: Sample) -> str:
    """The label of an answer that is a line of the question, the sentence of one (also behind `) `), or a label as it is printed."""
    behind = said.split(") ")[1] if ") " in said else said
    found = ""
    for line in str(sample.extra.get("as_printed", "")).split("\n")[1:]:
        head, _, sentence = line.partition(": ")
        label = label_form(line)
        # The official script compares whole heads, "Option 1"; "1" and "A" alone are read here too, as its paper says.
        if label and (said in (line, sentence) or behind == sentence or said.replace(".", "") in (head, label[0])):
            found = label[0]
    return found


def _form(record: Record) -> str:
    return record.sample.extra.get("format", "none")

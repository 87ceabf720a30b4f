"""Is a release whole? Rows, media by their headers, options, gold answers, known faults, and what it costs with a model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from evr1_core.config.rewards import RewardSection
from evr1_core.data.prompts import PromptBuilder, PromptFault, render, worded
from evr1_core.errors import Evr1Error, MediaError, RequestError
from evr1_core.media.store import MediaStore
from evr1_core.plugins import serves
from evr1_core.scoring.score import Scorer
from evr1_core.types import Budget, MediaRef, PatchFactors, Sample

ANY_MODEL = PatchFactors(pixels=32)
"""For reading headers without a model: the sizes that follow from it are not told."""
CHUNK = 128

Progress = Callable[[str, int, int], None]


def check_release(
    samples: Sequence[Sample],
    store: MediaStore,
    *,
    expected: int | None = None,
    benchmark: Any = None,
    builder: PromptBuilder | None = None,
    ask: Any = None,
    template: str | None = None,
    workers: int = 2,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Everything that can be said without decoding a frame, as plain JSON values.

    `expected`: the official number of questions; `builder`: of a model and a budget, for the length of each prompt. `whole`
    tells whether every official question can be asked.
    """
    refs = list(dict.fromkeys(ref for sample in samples for ref in sample.media))
    budget, factors = (builder.budget, builder.adapter.factors) if builder else (Budget(), ANY_MODEL)
    faults = media_faults(refs, store, budget, factors, workers, progress)
    found: dict[str, Any] = {
        "rows": len(samples),
        "expected": expected,
        "problem_types": dict(Counter(sample.problem_type for sample in samples).most_common()),
        "media": len(refs),
        "files": len({ref.path for ref in refs}),
        "media_faults": by_code(samples, faults),
        "questions_without_media": sum(any(ref in faults for ref in sample.media) for sample in samples),
        "options": options(samples),
        "gold": golds(samples),
        "errata": list(benchmark.errata(samples)) if hasattr(benchmark, "errata") else [],
        "tokens": tokens(samples, builder, progress) if builder else None,
        "prompt": one_prompt(samples, builder, ask, template, faults),
    }
    too_long = found["tokens"]["too_long"] if found["tokens"] else []
    found["whole"] = expected in (None, len(samples)) and not faults and not too_long
    return found


def media_faults(
    refs: Sequence[MediaRef], store: MediaStore, budget: Budget, factors: PatchFactors, workers: int, progress: Progress
) -> dict[MediaRef, MediaError]:
    """What is wrong with each medium, by its headers."""
    faults: dict[MediaRef, MediaError] = {}
    for start in range(0, len(refs), CHUNK):
        progress("media headers", start, len(refs))
        chunk = refs[start : start + CHUNK]
        for ref, plan in zip(chunk, store.plan_many(chunk, budget, factors, workers), strict=True):
            if isinstance(plan, MediaError):
                faults[ref] = plan
    progress("media headers", len(refs), len(refs))
    return faults


def by_code(samples: Sequence[Sample], faults: Mapping[MediaRef, MediaError]) -> dict[str, list[dict[str, Any]]]:
    """`missing`, `damaged`, ... -> each file once, with the reason and its questions."""
    asked: dict[str, list[str]] = defaultdict(list)
    for sample in samples:
        for path in dict.fromkeys(ref.path for ref in sample.media if ref in faults):
            asked[path].append(sample.id)
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for ref, error in faults.items():
        found[error.code].setdefault(ref.path, {"path": ref.path, "reason": error.reason, "questions": asked[ref.path]})
    return {code: list(files.values()) for code, files in sorted(found.items())}


def options(samples: Sequence[Sample]) -> dict[str, Any]:
    """How many options questions have, and which have an option twice or only one."""
    counts: Counter[int] = Counter()
    twice, single = [], []
    for sample in samples:
        if sample.options is None:
            continue
        texts = list(sample.options.values()) if isinstance(sample.options, Mapping) else list(sample.options)
        counts[len(texts)] += 1
        if len({text.strip().lower() for text in texts}) < len(texts):
            twice.append(sample.id)
        if len(texts) < 2:
            single.append(sample.id)
    return {"counts": {str(number): count for number, count in sorted(counts.items())}, "twice": twice, "single": single}


def golds(samples: Sequence[Sample]) -> dict[str, list[str]]:
    """What the scorer says against gold answers and scoring options: cause -> ids."""
    scorer = Scorer(RewardSection())
    found: dict[str, list[str]] = defaultdict(list)
    for sample in samples:
        try:
            cause = "unknown problem_type" if not serves(sample.problem_type) else scorer.check(sample)
        except RequestError as error:
            cause = str(error)
        if cause:
            found[cause].append(sample.id)
    return dict(found)


def tokens(samples: Sequence[Sample], builder: PromptBuilder, progress: Progress) -> dict[str, Any]:
    """Lengths of the prompts under the budget of `builder`, from headers; rows that can't be measured are not in it."""
    lengths: dict[str, int] = {}
    refused: Counter[str] = Counter()
    for place, sample in enumerate(samples):
        if place % CHUNK == 0:
            progress("prompts", place, len(samples))
        try:
            lengths[sample.id] = builder.plan_tokens(sample)
        except PromptFault as fault:
            refused[fault.exclusion.reason] += 1
    progress("prompts", len(samples), len(samples))
    limit = builder.max_prompt_tokens
    ordered = sorted(lengths.values())
    return {
        "limit": limit,
        "measured": len(ordered),
        "min": ordered[0] if ordered else None,
        "median": median(ordered) if ordered else None,
        "max": ordered[-1] if ordered else None,
        "sum": sum(ordered),
        "too_long": [name for name, length in lengths.items() if limit is not None and length > limit],
        "refused": dict(refused),
    }


def one_prompt(
    samples: Sequence[Sample], builder: PromptBuilder | None, ask: Any, template: str | None, faults: Mapping[MediaRef, MediaError]
) -> dict[str, Any] | None:
    """The prompt of the first question whose media are there: as the model gets it, or as messages where there is no model."""
    sample = next((one for one in samples if not any(ref in faults for ref in one.media)), samples[0] if samples else None)
    if sample is None:
        return None
    try:
        if builder is not None:
            return {"id": sample.id, "text": builder.text(sample).text}
        wording = ask(sample, lambda: tuple(() for _ in sample.media)) if ask else None
        messages = render(sample, template) if wording is None else worded(sample, wording)
        opening = wording.prefill if wording else ""
    except Evr1Error as error:
        return {"id": sample.id, "text": "", "error": str(error)}
    turns = [f"[{turn['role']}]\n{''.join(map(_piece, turn['content']))}" for turn in messages]
    return {"id": sample.id, "text": "\n".join([*turns, *([f"[assistant]\n{opening}"] if opening else [])])}


def _piece(item: Mapping[str, Any]) -> str:
    return item["text"] if item["type"] == "text" else f"<{item['type']}>"

"""What a step or an evaluation reports about its scores: nothing is lost in silence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from evr1_core.scoring.score import cause, evaluation_accuracy
from evr1_core.types import Score


@dataclass
class ScoreSummary:
    """Counts of one problem type, or of all. `total` = scored + unparsed + failed + invalid_gold."""

    total: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    """Causes of every status but `scored`."""
    whole: int = 0
    """Answers read from a text without an answer block."""
    counted: int = 0
    """Answers with an evaluation accuracy: scored, unparsed (0) and failed by the answer (0). The rest is left out."""
    accuracy: float | None = None
    """Mean over `counted`."""
    format: float | None = None
    """Mean over the answers that have one."""

    @property
    def left_out(self) -> int:
        """Answers without a number that the answer isn't to blame for."""
        return self.total - self.counted

    def line(self) -> str:
        """For people: `scored 7 of 10, 2 unparsed, 1 failed, 0 faulty gold`."""
        count = self.statuses
        return (
            f"scored {count['scored']} of {self.total}, {count['unparsed']} unparsed, {count['failed']} failed, "
            f"{count['invalid_gold']} faulty gold"
        )


def summarise(scores: Iterable[tuple[str, Score]]) -> dict[str, ScoreSummary]:
    """Summaries by problem type, in order of appearance, and of all under "". Takes (problem type, score)."""
    grouped: dict[str, list[Score]] = {"": []}
    for problem_type, score in scores:
        grouped.setdefault(problem_type, []).append(score)
        grouped[""].append(score)
    return {name: _summary(found) for name, found in grouped.items()}


def _summary(scores: list[Score]) -> ScoreSummary:
    accuracies = [value for value in map(evaluation_accuracy, scores) if value is not None]
    formats = [score.format for score in scores if score.format is not None]
    return ScoreSummary(
        total=len(scores),
        statuses=Counter(score.status for score in scores),
        causes=Counter(cause(score) for score in scores if score.status != "scored"),
        whole=sum(score.source == "whole" for score in scores),
        counted=len(accuracies),
        accuracy=sum(accuracies) / len(accuracies) if accuracies else None,
        format=sum(formats) / len(formats) if formats else None,
    )

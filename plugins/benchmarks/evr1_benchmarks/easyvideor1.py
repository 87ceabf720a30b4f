"""The converted benchmark files of EasyVideoR1 (arXiv 2604.16893) and the prompts of its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evr1_core.types import Sample, Wording


def samples(root: Path, names: Sequence[str]) -> list[Sample]:
    """Rows of the first of these files that is in `root`, or of `root` itself where it is a file."""
    raise NotImplementedError


def wording(sample: Sample, thinking: bool) -> Wording:
    """The prompt of its evaluation of Qwen3-VL, by problem type."""
    raise NotImplementedError

"""Base of the benchmark adapters: one release, its variants, its wordings.

A benchmark is a subclass in a module of its own that reads the release (`read`), words a question as its authors do
(`ask`), reads an answer as their script does (`official`), and says what they report (`aggregate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from evr1_benchmarks import easyvideor1
from evr1_core.data.prompts import FrameTimes
from evr1_core.errors import RequestError, nearest
from evr1_core.evaluate.benchmark import Official, Record, Report, aggregate
from evr1_core.types import Sample, Wording

CONVERTED = "easyvideor1"
"""Variant: the JSON file of the EasyVideoR1 repository in place of the official release. Prompt: its wording."""


class Release:
    """A benchmark with variants. Follows `evr1_core.evaluate.benchmark.Benchmark`."""

    variants: ClassVar[tuple[str, ...]] = ()
    """Names of its variants, the default first; without any there is one way to read the release."""
    converted: ClassVar[tuple[str, ...]] = ()
    """Names of the converted files of EasyVideoR1, the default first."""
    groups: ClassVar[tuple[str, ...]] = ()
    prompts: ClassVar[tuple[str, ...]] = ("official", CONVERTED, f"{CONVERTED}-qwen25", "neutral")

    def samples(self, root: Path, variant: str | None = None) -> list[Sample]:
        """Every question of a variant. Raises RequestError for a variant that isn't there, a file or column that is missing or
        not as expected, and a release without questions."""
        root = Path(root)
        found = self._samples(root, variant)
        if not found:
            raise RequestError(f"{root}: the release holds no question; is its file empty?")
        return found

    def _samples(self, root: Path, variant: str | None) -> list[Sample]:
        if variant == CONVERTED:
            return [self.adopt(sample) for sample in easyvideor1.samples(root, self.converted)]
        if variant is not None and variant not in self.variants:
            known = (*self.variants, *([CONVERTED] if self.converted else []))
            raise RequestError(f"{type(self).__name__} has no variant {variant!r}{nearest(variant, known)}")
        return self.read(root, variant or (self.variants[0] if self.variants else ""))

    def wording(self, sample: Sample, prompt: str, thinking: bool, frame_times: FrameTimes) -> Wording | None:
        if prompt == "official":
            return self.ask(sample, thinking, frame_times)
        if prompt.startswith(CONVERTED):
            return easyvideor1.wording(sample, thinking, qwen25=prompt.endswith("qwen25"))
        return None

    def read(self, root: Path, variant: str) -> list[Sample]:
        """Every question of the official release."""
        raise NotImplementedError

    def adopt(self, sample: Sample) -> Sample:
        """A row of a converted file with what this benchmark's tables and wording need beside."""
        return sample

    def ask(self, sample: Sample, thinking: bool, frame_times: FrameTimes) -> Wording:
        """The official prompt; `thinking` where the authors have one that asks for reasoning, else it is the same."""
        raise NotImplementedError

    def official(self, sample: Sample, text: str) -> Official | None:
        """The official reading of an answer; None where there is no rule but a judge."""
        raise NotImplementedError

    def aggregate(self, records: Sequence[Record]) -> Report:
        return aggregate(records, self.groups)

    def errata(self, samples: Sequence[Sample]) -> list[str]:
        """Known faults of the release among these samples, one line each."""
        return []

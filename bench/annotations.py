"""Every official annotation file that is at hand, read by its adapter: rows found beside the published number.

    python bench/annotations.py [--root ../shared/annotations] [--converted DIR] [--json out.json]

--root holds a folder per benchmark, with the files of its release as their repositories keep them (`OFFICIAL` below says where each
belongs in the layout that the adapter reads; files are linked into a temporary folder). Videos aren't needed. --converted is a folder with
the converted files of EasyVideoR1, `easyvideor1_format` of --root by default. Files that aren't there are left out and named. Some
are the first records only: then the published number is that of the whole, and the rows found are those of the slice.

Beside the counts: gold answers that no reward can read, ids that aren't unique, and the known faults that the adapter names. The exit
code is 1 where a whole file has another number of rows than was published.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evr1_core import plugins
from evr1_core.config.rewards import RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring.score import Scorer
from evr1_core.specs import BenchmarkSpec

OFFICIAL: tuple[tuple[str, str, Mapping[str, str], str], ...] = (
    ("video-mme", "no-subtitles", {"videomme": "videomme"}, ""),
    ("tempcompass", "all", {"tempcompass": "questions", "tempcompass/meta_info.json": "meta_info.json"}, ""),
    ("longvideobench", "no-subtitles", {"longvideobench/lvb_val.sample6.json": "lvb_val.json"}, "6 records"),
    ("mlvu", "dev", {"mlvu/dev": "json"}, ""),
    ("mlvu", "dev-generation", {"mlvu/dev": "json"}, ""),
    ("vcr-bench", "pixel-boxes", {"vcrbench/input.json": "meta_info_video.json"}, "4 records"),
    *(
        ("videoreasonbench", demo, {f"video_reason_bench/{demo}.first40.json": f"questions/{demo}.json"}, "40 records")
        for demo in ("hrd", "grid", "cup", "file_sys", "card", "chip")
    ),
    ("mmvu", "validation", {"mmvu/validation.json": "validation.json"}, ""),
    ("video-mmmu", "all", {"video_mmmu": "data"}, ""),
    ("charades-sta", "test", {"charades_sta": "Charades-STA"}, ""),
    ("ovo-bench", "", {"ovobench/ovo_bench_new.json": "ovo_bench_new.json"}, ""),
)
"""Benchmark, variant, where each file or folder lies below --root and in the release, and what a slice holds."""


@dataclass(frozen=True)
class Line:
    """What was found of one benchmark and variant."""

    benchmark: str
    variant: str
    found: int | None
    """None: the files aren't there, or can't be read."""
    published: int | None
    note: str = ""

    @property
    def right(self) -> bool:
        return self.published is None or self.found in (None, self.published) or bool(self.note)


def read(spec: BenchmarkSpec, root: Path, variant: str, note: str) -> Line:
    """Rows of one variant, with what is faulty about them."""
    published = spec.variants.get(variant, spec.size)
    benchmark: Any = plugins.build(spec)
    try:
        samples = benchmark.samples(root, variant or None)
    except RequestError as error:
        return Line(spec.name, variant, None, published, str(error))
    scorer = Scorer(RewardSection())
    bad = [sample.id for sample in samples if scorer.score(sample, "A").status == "invalid_gold"]
    twice = len(samples) - len({sample.id for sample in samples})
    print(f"\n{spec.name} {variant}: {len(samples)} rows")
    for what in (
        f"{twice} ids are not unique" if twice else "",
        f"no gold answer: {', '.join(bad)}" if bad else "",
        *benchmark.errata(samples),
    ):
        if what:
            print(f"  {what[:200]}")
    return Line(spec.name, variant, len(samples), published, note)


def official(specs: Mapping[str, BenchmarkSpec], root: Path) -> list[Line]:
    found: list[Line] = []
    for name, variant, places, note in OFFICIAL:
        absent = [source for source in places if not (root / source).exists()]
        if absent:
            found.append(Line(name, variant, None, specs[name].size, f"{', '.join(absent)} isn't there"))
            continue
        with tempfile.TemporaryDirectory() as folder:
            for source, place in places.items():
                (Path(folder) / place).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / place).symlink_to((root / source).resolve())
            found.append(read(specs[name], Path(folder), variant, note))
    return found


def converted(specs: Mapping[str, BenchmarkSpec], folder: Path) -> list[Line]:
    """The first converted file of each benchmark. 30 rows of each are a slice."""
    found: list[Line] = []
    for spec in specs.values():
        names = getattr(plugins.build(spec), "converted", ())
        here = [name for name in names if (folder / name).is_file() and (folder / name).stat().st_size]
        if names and not here:
            found.append(Line(spec.name, "easyvideor1", None, spec.variants.get("easyvideor1"), f"{names[0]} isn't there"))
        elif here:
            line = read(spec, folder / here[0], "easyvideor1", "")
            found.append(line if line.found != 30 else Line(spec.name, "easyvideor1", 30, line.published, "30 records"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "annotations")
    parser.add_argument("--converted", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not given.root.is_dir():
        parser.error(f"--root {given.root}: no such folder")
    specs = {spec.name: spec for spec in plugins.catalogue().specs(BenchmarkSpec)}
    lines = [*official(specs, given.root), *converted(specs, given.converted or given.root / "easyvideor1_format")]
    print(f"\n{'benchmark':<20}{'variant':<16}{'found':>8}{'published':>11}  ")
    for line in lines:
        mark = "" if line.right else "DIFFERS"
        shown = "-" if line.found is None else line.found
        print(f"{line.benchmark:<20}{line.variant:<16}{shown:>8}{line.published or '-':>11}  {mark}{line.note[:110]}")
    never = sorted(set(specs) - {line.benchmark for line in lines if line.found is not None} - {"demo"})
    print(f"not at hand: {', '.join(never) or 'none'}")
    if given.json:
        given.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n", encoding="utf-8")
    return 0 if all(line.right for line in lines) else 1


if __name__ == "__main__":
    raise SystemExit(main())

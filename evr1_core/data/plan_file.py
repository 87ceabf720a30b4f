"""Plans on disk: one file per plan, named by a hash of everything that shapes its numbers.

The state of each medium (size, times, inode) stands in the file, so that a changed medium is noticed by a look at its
directory entry, without reading it. A plan appears complete or not at all; a torn or foreign file is a miss.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import evr1_core
from evr1_core.data.prompts import PromptBuilder
from evr1_core.data.rows import HIDDEN
from evr1_core.data.templates import Templates
from evr1_core.errors import MediaError
from evr1_core.media import sampling
from evr1_core.media.entry import unfinished
from evr1_core.media.hashes import Fingerprint
from evr1_core.types import Sample

FORMAT = 1
"""Raise it when what a plan says changes."""
KEPT = 64
"""Plans that stay in a folder; the oldest go first."""
LIBRARIES = ("av", "pillow", "jinja2", "tokenizers", "transformers")
"""Those that read headers or make tokens."""
MODEL_FILES = (".json", ".jinja", ".txt", ".model", ".tiktoken")
"""Configuration, tokenizer and processor of a model; no weights."""

State = list[int]
"""Size in bytes, times of the last change of content and of attributes in ns, inode."""

_log = logging.getLogger(__name__)


class Stored(NamedTuple):
    """What a file holds."""

    rows: list[dict[str, Any]]
    media: dict[str, State | None]
    """Path -> state when it was looked at; None for a medium that could not be used, which is looked at again each time."""


class PlanFile:
    """The file of one plan below `directory`."""

    def __init__(self, directory: Path, key: str) -> None:
        self.path, self.key = directory / f"{key}.jsonl", key

    def read(self) -> Stored | None:
        """None when there is no such plan, or the file isn't whole."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("%s: a plan that can't be read, planning anew (%s)", self.path, error.strerror)
            return None
        body, _, seal = content.removesuffix(b"\n").rpartition(b"\n")
        if seal != hashlib.sha256(body).hexdigest().encode():
            _log.warning("%s: not a whole plan, planning anew", self.path)
            return None
        head, *lines = map(json.loads, body.splitlines())
        if head["format"] != FORMAT or head["key"] != self.key:
            return None
        return Stored(lines[head["media"] :], dict(lines[: head["media"]]))

    def write(self, plan: Stored) -> None:
        """Put the plan there in one move. Raises OSError."""
        head = {"format": FORMAT, "key": self.key, "media": len(plan.media), "rows": len(plan.rows)}
        body = "\n".join(json.dumps(line, separators=(",", ":")) for line in (head, *plan.media.items(), *plan.rows)).encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = unfinished(self.path.parent)
        try:
            with temporary.open("xb") as file:
                file.write(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._thin_out()

    def _thin_out(self) -> None:
        ages = []
        for path in self.path.parent.glob("*.jsonl"):
            with suppress(FileNotFoundError):  # another process thins out too
                ages.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(ages)[:-KEPT]:
            path.unlink(missing_ok=True)


def states(paths: Iterable[str]) -> dict[str, State | None]:
    """The state of each file; None where there is none. In threads, since a network file system answers slowly."""
    names = list(paths)
    chunks = [names[first : first + 256] for first in range(0, len(names), 256)]
    with ThreadPoolExecutor(16) as pool:
        found = [state for chunk in pool.map(lambda chunk: list(map(_state, chunk)), chunks) for state in chunk]
    return dict(zip(names, found, strict=True))


def _state(path: str) -> State | None:
    try:
        state = Fingerprint.of(path)
    except (MediaError, ValueError):  # looking into the file tells the reason
        return None
    return [state.size, state.mtime_ns, state.ctime_ns, state.inode]


def plan_key(samples: Sequence[Sample], builder: PromptBuilder) -> str:
    """Hash of everything that shapes the numbers of a plan, but for the media themselves.

    Rows, templates, system prompt, model family, tokenizer and processor files, budget, and the versions of what reads
    them. The limit on tokens counts only where rows are made to fit it.
    """
    names = {problem_type: builder.template_of(problem_type) for problem_type in dict.fromkeys(sample.problem_type for sample in samples)}
    templates = Templates()
    what = {
        "format": FORMAT,
        "evr1": evr1_core.__version__,
        "libraries": {name: _version(name) for name in LIBRARIES},
        "sampler": sampling.VERSION,
        "model": _model(builder),
        "templates": names,
        "sources": {name: templates.sources(name) for name in sorted(set(names.values()))},
        "system": builder.system,
        "budget": asdict(builder.budget),
        "factors": asdict(builder.adapter.factors),
        "shrink to": builder.shrink_to,
    }
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode())
    for sample in samples:
        digest.update(_content(sample))
    return digest.hexdigest()


def _content(sample: Sample) -> bytes:
    """All of a row that a prompt may show."""
    media = [(ref.path, ref.kind, ref.start, ref.end, ref.fps) for ref in sample.media]
    options = dict(sample.options) if isinstance(sample.options, Mapping) else sample.options
    extra = {name: value for name, value in sample.extra.items() if name not in HIDDEN}
    shown = (sample.id, sample.problem, sample.problem_type, media, options, sample.source, dict(sample.scoring), extra)
    return json.dumps(shown, default=repr).encode() + b"\n"


def _model(builder: PromptBuilder) -> dict[str, str]:
    """Hashes of the family's code and of the model's files that make tokens."""
    family = type(builder.adapter)
    source = inspect.getsourcefile(family)
    files = [path for path in sorted(builder.adapter.directory.iterdir()) if path.suffix in MODEL_FILES and path.is_file()]
    read = [path for path in files if not path.name.endswith(".index.json")] + ([Path(source)] if source else [])
    return {"family": f"{family.__module__}:{family.__qualname__}", **{path.name: _hash(path) for path in read}}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None

"""Everything that may change a number of an evaluation, as plain JSON values: the identity of its results."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import evr1_core
from evr1_core import plugins
from evr1_core.config.models import RunConfig
from evr1_core.data.order import hash_of
from evr1_core.data.prompts import Ask
from evr1_core.data.templates import prompt_sources
from evr1_core.evaluate.stream import Limits
from evr1_core.media.decode import decoder_version
from evr1_core.record.files import sha256
from evr1_core.record.manifest import template_hashes
from evr1_core.scoring.score import SCORER_VERSION
from evr1_core.specs import EngineSpec
from evr1_core.types import Sample, Sampling

NOT_IN_NUMBERS: Any = {
    "workers": True,
    "max_failed": True,
    "judge": {
        name: True
        for name in ("url", "api_key_env", "timeout", "tries", "concurrency", "max_requests", "max_total_tokens", "cache", "cache_dir")
    },
}
"""Keys of the reward section that change how scoring is done, not what it gives."""
TIMES = (0.5, 5.0, 60.0, 600.0)
"""Seconds of made-up frames."""


def settings(config: RunConfig, *, weights: str, engine: str, what: Mapping[str, Any]) -> dict[str, Any]:
    """`weights`: identity of the model; `what`: identity of the questions, for example benchmark and split."""
    template = config.data.template
    return {
        "model": {"weights": weights, "dtype": config.model.dtype},
        "questions": dict(what),
        "prompt": {
            "template": template,
            "sources": prompt_sources(template),
            "chat": dict(config.model.chat),
            "shipped": template_hashes(),
            "max_tokens": config.data.max_prompt_tokens,
        },
        "media": {**config.media.evaluate.model_dump(mode="json"), "decoders": [decoder_version("image"), decoder_version("video")]},
        "sampling": {**config.evaluate.model_dump(mode="json", include={"n", "temperature", "max_tokens"}), "seed": config.seed},
        "engine": {"name": engine, "options": dict(config.rollout.options)},
        "rewards": config.rewards.model_dump(mode="json", exclude=NOT_IN_NUMBERS),
        "scorer": SCORER_VERSION,
        "versions": versions(engine),
    }


def questions(samples: Sequence[Sample], ask: Ask | None = None) -> dict[str, str]:
    """Identity of the questions of a release, all of them, for `what`: `content` of ids, texts, answers, options, scoring and names of
    media; `wordings` of how `ask` words each.

    Words that depend on the frames are taken at TIMES, so that no file is opened: another rule of wording is seen, another
    line of subtitles only where it stands at one of these.
    """
    found = {"content": hash_of(samples)}
    if ask is not None:
        digest = hashlib.sha256()
        for sample in samples:
            try:
                worded = ask(sample, lambda sample=sample: (TIMES,) * len(sample.media))
                text = json.dumps(asdict(worded) if worded else None, default=repr)
            except Exception as error:  # becomes an outcome of its question when it is asked
                text = type(error).__name__
            digest.update(text.encode() + b"\n")
        found["wordings"] = digest.hexdigest()
    return found


def versions(engine: str) -> dict[str, str]:
    """Packages that may change a number, those of the engine among them. What is not installed is left out."""
    found = {"evr1": evr1_core.__version__}
    specs = [spec for spec in plugins.catalogue().specs(EngineSpec) if spec.name == engine]
    needed = [name for spec in specs for line in spec.requires for name in re.findall(r"(?:^|\|)\s*([\w.-]+)", line)]
    for name in sorted({"torch", "transformers", "tokenizers", *needed}):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def limits(config: RunConfig) -> Limits:
    """How far an evaluation may go; no part of its identity."""
    return Limits(media_bytes=round(config.evaluate.media_gib * 2**30), deadline=config.evaluate.deadline)


def sampling(config: RunConfig) -> Sampling:
    section = config.evaluate
    return Sampling(n=section.n, temperature=section.temperature, max_tokens=section.max_tokens, seed=config.seed)


def excluding(config: RunConfig) -> RunConfig:
    """The configuration with which prompts are made: what can't be asked is an outcome of its question, never a stop."""
    return config.model_copy(update={"data": config.data.model_copy(update={"bad_rows": "exclude", "overlong": "exclude"})})


def model_hash(directory: Path) -> str:
    """Hash of every file of a model directory that a model or its prompts are read from."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.suffix in (".safetensors", ".json", ".jinja", ".txt", ".model") and path.name != "evr1.json":
            digest.update(f"{path.name}\0{sha256(path)}\n".encode())
    return digest.hexdigest()

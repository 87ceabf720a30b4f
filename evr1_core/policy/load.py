"""From the name of a model to its adapter: a preset, a local directory or a repository id."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from evr1_core import plugins
from evr1_core.errors import RequestError
from evr1_core.policy.adapter import ModelAdapter


def model_location(name: str) -> str:
    """A preset's repository id or directory, which is made where the preset says how; anything else as it is."""
    target = plugins.maker(name)
    if target is not None:
        return str(made_model(name, target))
    return plugins.preset(name) if plugins.is_preset(name) else name


def made_model(name: str, target: str) -> Path:
    """The directory of a model that `target` makes, `$EVR1_CACHE_DIR/models/NAME-HASH`; made once for each state of its source."""
    make = plugins.resolve(target)
    folder = Path(inspect.getfile(make)).parent
    source = hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py"))))
    source.update(version("transformers").encode())
    root = os.environ.get("EVR1_CACHE_DIR")
    models = (Path(root) if root else Path.home() / ".cache" / "evr1") / "models"
    directory = models / f"{name.split('@')[0]}-{source.hexdigest()[:12]}"
    if not directory.is_dir():
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=models) as scratch:
            make(Path(scratch) / "model")
            try:
                (Path(scratch) / "model").rename(directory)
            except OSError:  # another process was first
                if not directory.is_dir():
                    raise
    return directory


def local_directory(name: str) -> Path:
    """The directory with the model's files; a repository id is looked up in the local cache, then fetched.

    Raises RequestError for a name that is neither a preset, a model directory nor a repository that can be reached.
    """
    location = model_location(name)
    directory = Path(location).expanduser()
    if directory.is_dir():
        if not (directory / "config.json").is_file():
            raise RequestError(f"model {name!r}: {directory} has no config.json, so it is not a model directory; `evr1 export` makes one")
        return directory
    if location.count("/") != 1 or location.startswith((".", "/", "~")):
        # Not a directory and not "owner/name": give the preset error with the near names.
        plugins.preset(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(location, ignore_patterns=["*.bin", "*.pth", "*.pt", "*.gguf", "original/*"]))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RequestError(
            f"model {name!r}: {location} is no local directory and could not be fetched ({reason}); "
            "give the path of a directory that holds config.json and safetensors weights"
        ) from error


def model_type(directory: Path) -> str:
    """`model_type` of a model directory's config.json."""
    path = directory / "config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError) as error:
        raise RequestError(f"{path}: not readable as a model configuration: {error}") from error
    if not isinstance(found, str):
        raise RequestError(f"{path}: no model_type, so no model family can be chosen")
    return found


def load_adapter(name: str, chat: Mapping[str, Any] | None = None) -> ModelAdapter:
    """The adapter of a preset, directory or repository id. Reads tokenizer and processor files, no weights.

    `chat`: arguments of the chat template, `model.chat`. Raises RequestError for one that the family knows to have no effect.
    """
    directory = local_directory(name)
    spec = plugins.model_for(model_type(directory))
    plugins.check_requirements(spec)
    assert spec.target is not None
    return plugins.resolve(spec.target)(directory, chat or {})

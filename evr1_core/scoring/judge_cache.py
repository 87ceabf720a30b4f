"""Replies of a judge on the disk: one file each, named by the content of the question. Processes may share the folder.

A file is complete or not there. A damaged one counts as absent and is written anew. Failures are never stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evr1_core.errors import RequestError


def default_cache_dir() -> Path:
    """`$EVR1_CACHE_DIR/judge`, else `~/.cache/evr1/judge`."""
    root = os.environ.get("EVR1_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "evr1") / "judge"


def reply_key(identity: Mapping[str, Any], prompt: str) -> str:
    """Hash of the model, its settings and the question."""
    return hashlib.sha256(json.dumps([dict(identity), prompt], sort_keys=True).encode()).hexdigest()


class JudgeCache:
    """The folder. Safe for threads and processes."""

    def __init__(self, directory: Path | None = None) -> None:
        """Raises RequestError when nothing can be written there."""
        self.directory = directory or default_cache_dir()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.directory):
                pass
        except OSError as error:
            raise RequestError(
                f"{self.directory}: replies of the judge can't be stored there ({error.strerror}); "
                "give another folder as rewards.judge.cache_dir, or rewards.judge.cache=false"
            ) from error

    def get(self, key: str) -> str | None:
        """The stored reply, None when there is none that can be read."""
        try:
            found = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        reply = found.get("reply") if isinstance(found, dict) and found.get("key") == key else None
        return reply if isinstance(reply, str) else None

    def put(self, key: str, identity: Mapping[str, Any], prompt: str, reply: str) -> None:
        """Store a reply with what it answers, for people. Raises OSError."""
        path = self._path(key)
        path.parent.mkdir(exist_ok=True)
        content = json.dumps({"key": key, "judge": dict(identity), "prompt": prompt, "reply": reply})
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key[2:]}.json"

"""What a run was: enough to repeat it, or to see why a repetition differs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import evr1_core
from evr1_core import plugins
from evr1_core.record.files import next_free, sha256, to_json, write_atomic


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def manifest(
    config: BaseModel,
    origins: Mapping[str, str],
    *,
    command: Sequence[str] = (),
    seeds: Mapping[str, int] | None = None,
    files: Iterable[Path] = (),
) -> dict[str, Any]:
    """The record of one start. `files` are data and templates whose bytes matter."""
    return {
        "evr1": evr1_core.__version__,
        "started": now(),
        "command": list(command) or sys.argv,
        "directory": os.getcwd(),
        "config": config.model_dump(mode="json"),
        "origins": dict(origins),
        "seeds": dict(seeds or {}),
        "files": {str(path): file_entry(path) for path in files},
        "templates": template_hashes(),
        "code": git_state(Path(evr1_core.__file__).parent),
        "plugins": plugin_rows(),
        "packages": packages(),
        "hardware": hardware(),
    }


def write_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest; one of an earlier start is kept beside it under a number."""
    if path.exists():
        path.rename(next_free(path, "before"))
    write_atomic(path, to_json(content) + "\n")


def file_entry(path: Path) -> dict[str, Any]:
    """Size and hash of a file, or why there are none."""
    if not path.is_file():
        return {"missing": True}
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def template_hashes() -> dict[str, str]:
    """Hash of every shipped prompt template."""
    import hashlib

    folder = resources.files("evr1_templates") / "prompts"
    if not folder.is_dir():
        return {}
    found = {entry.name: hashlib.sha256(entry.read_bytes()).hexdigest() for entry in folder.iterdir() if entry.name.endswith(".j2")}
    return dict(sorted(found.items()))


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that holds `folder` and whether it was changed; None for an installed package."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    # A package installed below somebody else's repository has no state there: git must know this very folder.
    if commit is None or not git("ls-files", "--", "."):
        return None
    status = git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if status is None else bool(status)}


def plugin_rows() -> list[dict[str, str]]:
    """Every plugin with the distribution and version it came from."""
    wanted = ("kind", "name", "distribution", "version", "status")
    return [{name: str(getattr(row, name)) for name in wanted} for row in plugins.catalogue().rows()]


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {str(dist.metadata["Name"]): dist.version for dist in metadata.distributions() if dist.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def hardware() -> dict[str, Any]:
    """Machine, processors, memory, accelerators as far as torch was loaded, and what limits them."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": usable,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["accelerators"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        found["cuda"] = torch.version.cuda
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())

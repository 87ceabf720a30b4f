"""What makes a folder of tensors a checkpoint: a manifest with size and hash of every file, written last."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import evr1_core
from evr1_core.record.files import sha256, write_atomic
from evr1_core.train.checkpoint_files import CheckpointError, Files, Stored
from evr1_core.train.checkpoint_snapshot import outcome_path

FORMAT = 2
"""Version of the layout; a newer one is refused. 2 knows files of ranks, 1 did not."""


def collect(folder: Path, ranks: int, patience: Callable[[], float], alive: Callable[[], bool]) -> Files:
    """What all ranks wrote, once each has said so; the files that say it are gone then.

    Raises CheckpointError with the reason of a rank, when nothing was written for `patience()` seconds, and when
    the ranks are not `alive()` any more.
    """
    outcomes: dict[int, Any] = {}
    seen, since = -1, time.monotonic()
    while len(outcomes) < ranks:
        there = alive()  # asked first: what they wrote before they ended counts
        for rank in range(ranks):
            if rank not in outcomes and outcome_path(folder, rank).is_file():
                outcomes[rank] = json.loads(outcome_path(folder, rank).read_text(encoding="utf-8"))
        failed = {rank: one["error"] for rank, one in outcomes.items() if "error" in one}
        if failed:
            rank, reason = next(iter(failed.items()))
            raise CheckpointError(reason if ranks == 1 else f"rank {rank}: {reason}")
        if len(outcomes) == ranks:
            break
        written = bytes_in(folder)
        seen, since = (written, time.monotonic()) if written != seen else (seen, since)
        late = ", ".join(str(rank) for rank in range(ranks) if rank not in outcomes)
        if not there:
            raise CheckpointError(f"rank {late} ended before all was written")
        if (still := time.monotonic() - since) > patience():
            raise CheckpointError(f"rank {late} wrote nothing for {still:.0f} s: see its log, and whether the disk answers")
        time.sleep(0.05)
    for rank in range(ranks):
        outcome_path(folder, rank).unlink()
    return {name: entry for rank in range(ranks) for name, entry in outcomes[rank]["files"].items()}


def bytes_in(folder: Path) -> int:
    """Of its files; a temporary one may get its name meanwhile."""
    found = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found += path.stat().st_size
    return found


def write_manifest(folder: Path, files: Files, state: str, metrics: Mapping[str, float]) -> None:
    """What makes a folder of tensors a checkpoint. Each rank has read back and hashed its own files; here every file must be there in
    its size, and every tensor as a whole."""
    (folder / "state.json").write_text(state, encoding="utf-8")
    pieces: dict[str, list[str]] = {}
    for name, entry in files.items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != entry["bytes"]:
            raise CheckpointError(
                f"{name} is not in {folder.parent} as its rank wrote it: the output folder must be on a file system that all machines share"
            )
        pieces.setdefault(entry["kind"], []).append(name)
    for names in pieces.values():
        Stored([folder / name for name in names])
    listed = {name: {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in files.items()}
    own = folder / "state.json"
    listed[own.name] = {"bytes": own.stat().st_size, "sha256": sha256(own)}
    content = {"format": FORMAT, "evr1": evr1_core.__version__, "tensors": pieces, "files": listed, "validation": dict(metrics)}
    write_atomic(folder / "manifest.json", json.dumps(content, indent=1) + "\n")


def metrics_of(path: Path) -> dict[str, float]:
    """Numbers of the validation of a checkpoint's weights; empty without one, and where the manifest can't be read."""
    try:
        return json.loads((path / "manifest.json").read_text(encoding="utf-8")).get("validation", {})
    except (OSError, ValueError):
        return {}


def find_fault(path: Path) -> str | None:
    """Compare a checkpoint with its manifest, byte by byte."""
    try:
        content = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        version, files = content["format"], content["files"]
    except FileNotFoundError:
        return "it has no manifest.json, so it was not finished"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest.json is not readable ({error})"
    if version not in (1, FORMAT):
        return f"it has format {version}, this version reads 1 and {FORMAT} (written by evr1 {content.get('evr1', '?')})"
    for name, entry in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256(file) != entry["sha256"]:
            return f"{name} has other content than was written"
    return None

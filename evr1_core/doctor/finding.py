"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check on one node."""

    check: str
    state: State
    text: str
    remedy: str = ""
    node: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    """Plain values that nodes are compared by."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a configuration needs on every node. Plain values: it travels to the nodes."""

    folders: tuple[str, ...] = ()
    """Written to: the run's folder, the cache, temporary files."""
    shared: tuple[str, ...] = ()
    """Of these, the ones that every node must see alike."""
    files: tuple[str, ...] = ()
    """Data files and media."""
    model: str = ""
    """A model's directory; empty where it is a repository id."""
    min_free_gib: float = 1.0

"""Fixtures that several test folders share."""

from __future__ import annotations

from pathlib import Path

import pytest

collect_ignore = ["example_plugin"]  # a distribution of its own: test_example_plugin.py installs it and runs its tests


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the built-in family at tiny size, float32, on disk."""
    from evr1_models.tiny import make_tiny_qwen3_vl

    return make_tiny_qwen3_vl(tmp_path_factory.mktemp("tiny"), layers=2, hidden=64, heads=2, vision_hidden=32)

"""What makes two evaluations the same: everything that may change a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evr1_core.config.models import RunConfig
from evr1_core.errors import RequestError
from evr1_core.evaluate.settings import questions, settings
from evr1_core.types import MediaRef, Sample, Wording


def identity(**sections: Any) -> dict[str, Any]:
    return settings(RunConfig.model_validate(sections), weights="w", engine="hf", what={"data": ["a.jsonl"]})


def test_settings_that_change_numbers_change_the_identity() -> None:
    base = identity()
    assert identity() == base == identity(name="other", rewards={"workers": 7}, train={"lr": 1e-3})
    for other in (
        {"evaluate": {"temperature": 0.5}},
        {"evaluate": {"max_tokens": 7}},
        {"media": {"evaluate": {"video": {"fps": 1}}}},
        {"rewards": {"require_tag": True}},
        {"data": {"max_prompt_tokens": 9}},
        {"model": {"dtype": "float32"}},
        {"model": {"chat": {"enable_thinking": False}}},
        {"seed": 5},
    ):
        assert identity(**other) != base, other


def test_the_text_of_a_template_counts_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a file of a package, and what they extend."""
    package = tmp_path / "made_up_prompts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "own.j2").write_text("{% extends 'parent.j2' %}")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("made_up_prompts:own.j2", str(package / "own.j2")):
        seen = []
        for text in ("{{ problem }}", "{{ problem }} Think."):
            (package / "parent.j2").write_text(text)
            seen.append(identity(data={"template": name}))
        assert seen[0] != seen[1], name
    with pytest.raises(RequestError, match="no such file"):
        identity(data={"template": str(tmp_path / "missing.j2")})


def test_another_question_or_another_wording_is_another_identity() -> None:
    def sample(**changed: Any) -> Sample:
        media = (MediaRef("/data/a.mp4", "video"),)
        return Sample(
            **{"id": "q", "problem": "?", "answer": "A", "problem_type": "choice", "media": media, "options": ("x", "y"), **changed}
        )

    def worded(text: str) -> Any:
        return lambda sample, times: Wording((0, text.format(sample.problem, len(times()), times()[0][1])))

    base = questions([sample()], worded("{0} {1} {2}"))
    assert base == questions([sample(media=(MediaRef("/moved/a.mp4", "video"),))], worded("{0} {1} {2}"))
    for changed in (
        {"id": "p"},
        {"problem": "What?"},
        {"answer": "B"},
        {"options": ("x", "z")},
        {"media": (MediaRef("/data/b.mp4", "video"),)},
    ):
        assert questions([sample(**changed)], worded("{0} {1} {2}"))["content"] != base["content"], changed
    for text in ("{0} {1} {2}.", "{0} {1}"):
        assert questions([sample()], worded(text))["wordings"] != base["wordings"]
    assert questions([sample()]).keys() == {"content"}


def test_a_wording_that_breaks_is_left_to_its_question() -> None:
    def broken(sample: Sample, times: Any) -> Wording:
        raise KeyError("subtitles")

    assert questions([Sample("q", "?", "A", "choice")], broken)["wordings"]

"""The configuration of scoring: weights, limits, the judge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from evr1_core.config.section import Section


class OverlongSection(Section):
    """Soft overlong punishment (DAPO, arXiv 2503.14476, eq. 13)."""

    max_tokens: int = Field(gt=0)
    """Longest answer; from here on the full punishment."""
    buffer: int = Field(gt=0)
    """The punishment grows over the last `buffer` tokens before `max_tokens`."""
    factor: float = Field(default=1.0, ge=0)
    """The full punishment, taken off the score."""


class JudgeEngineSection(Section):
    """A rollout engine of its own that serves the judge's model in this process."""

    name: str = "auto"
    """Name of an engine plugin; auto takes the best one installed for the device."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the engine plugin."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the weights."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is a GPU."""
    max_prompt_tokens: int = Field(default=8_192, ge=1)
    """A longer question is not asked; the judge counts as unavailable for it."""


class JudgeSection(Section):
    """A language model that grades answers, behind an OpenAI-compatible endpoint (`url`) or in this process (`engine`)."""

    model: str = Field(min_length=1)
    """Name of the model at the endpoint; with `engine` a preset, a local directory or a repository id."""
    url: str | None = None
    """Base of the endpoint, to which `/chat/completions` is added, for example `http://localhost:8000/v1`."""
    engine: JudgeEngineSection | None = None
    """In place of `url`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key. The key itself is written nowhere."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0 is greedy."""
    max_tokens: int = Field(default=1_024, ge=1)
    """Longest reply."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request's body; null takes one out, for example `{max_tokens: null, max_completion_tokens: 1024}`."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds that one try may take as a whole."""
    tries: int = Field(default=2, ge=1)
    """Requests for one question, the first included."""
    concurrency: int = Field(default=16, ge=1)
    """Questions that are asked at the same time; with `engine` answered in one batch."""
    max_requests: int | None = Field(default=None, ge=1)
    """Requests that one start may send, retries included; then the judge is unavailable. Null is no limit."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Tokens of questions and replies that one start may use, as the model reports them; requests under way may pass it. Null: no limit."""
    cache: bool = True
    """Keep replies on the disk, so that one question is paid once."""
    cache_dir: Path | None = None
    """Folder of the replies; None is `$EVR1_CACHE_DIR/judge` or `~/.cache/evr1/judge`. Processes may share it."""

    @model_validator(mode="after")
    def _one_way(self) -> JudgeSection:
        if (self.url is None) == (self.engine is None):
            raise ValueError("give either url (an OpenAI-compatible endpoint) or engine (a model in this process)")
        if self.url is not None and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", self.url):
            raise ValueError("url must read http://HOST[:PORT]/PATH without user, password or query; a key is named by api_key_env")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api_key_env must be the name of an environment variable, not the key itself")
        return self


class TypeRewardSection(Section):
    """What differs for one problem type; null is as in `rewards`."""

    accuracy_weight: float | None = Field(default=None, ge=0, le=1)
    """Share of accuracy in the score."""
    format_weight: float | None = Field(default=None, ge=0, le=1)
    """Share of the format in the score."""
    require_tag: bool | None = None
    """Refuse answers outside `<answer>` tags."""
    think: Literal["auto", "required", "off"] | None = None
    """Reasoning tags in the format score."""
    gate: bool | None = None
    """Accuracy counts only when the format is not 0."""
    overlong: OverlongSection | None = None
    """Punish answers that come close to their longest allowed length."""


class RewardSection(Section):
    """How answers are scored; the same for training and evaluation."""

    accuracy_weight: float = Field(default=0.9, ge=0, le=1)
    """Share of accuracy in the score; with `format_weight` it makes 1."""
    format_weight: float = Field(default=0.1, ge=0, le=1)
    """Share of the format in the score."""
    require_tag: bool = False
    """Refuse answers outside `<answer>` tags."""
    think: Literal["auto", "required", "off"] = "auto"
    """Reasoning tags in the format score: required asks for a closed block, auto accepts its absence, off does not look."""
    gate: bool = False
    """Accuracy counts only when the format is not 0."""
    max_response_chars: int = Field(default=400_000, gt=0)
    """A longer response is not read: unparsed, format 0."""
    overlong: OverlongSection | None = None
    """Punish answers that come close to their longest allowed length; null does not."""
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options of reward plugins, by reward name."""
    use: dict[str, str] = Field(default_factory=dict)
    """problem_type -> reward name, where two plugins offer one problem type or another than the usual one is meant."""
    per_type: dict[str, TypeRewardSection] = Field(default_factory=dict)
    """problem_type -> what differs for it: accuracy_weight, format_weight, require_tag, think, gate, overlong."""
    judge: JudgeSection | None = None
    """The model that grades answers for rewards that ask one; null is none."""
    workers: int = Field(default=2, ge=1)
    """Processes that score answers."""
    deadline: float = Field(default=10.0, gt=0)
    """Seconds one answer may take before its scorer is killed."""
    max_failed: float = Field(default=0.1, ge=0, le=1)
    """A step with a larger share of failed scores stops the run."""

    @model_validator(mode="after")
    def _weights(self) -> RewardSection:
        if abs(self.accuracy_weight + self.format_weight - 1) > 1e-9:
            raise ValueError(f"accuracy_weight {self.accuracy_weight} + format_weight {self.format_weight} must be 1")
        for name, given in self.per_type.items():
            accuracy = self.accuracy_weight if given.accuracy_weight is None else given.accuracy_weight
            form = self.format_weight if given.format_weight is None else given.format_weight
            if abs(accuracy + form - 1) > 1e-9:
                raise ValueError(f"per_type.{name}: accuracy_weight {accuracy} + format_weight {form} must be 1: give both")
        return self

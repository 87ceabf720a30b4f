"""The one prompt builder of training, validation and evaluation: sample -> messages -> text and clips -> token ids.

    render(sample)  ->  one user turn: text, {"type": "video"}, text, ...     (jinja2 template, split at the media's places)
    adapter.render  ->  text with one placeholder per medium
    store.load_many ->  clips, in the order of the placeholders
    adapter.encode  ->  token ids and model inputs

Only a mark of the question that has a medium becomes a placeholder. A control text of the chat format in a row is
refused, not tokenised. A prompt that is too long is refused, never cut.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from evr1_core.data.media_fields import MARK
from evr1_core.data.options import option_lines
from evr1_core.data.rows import HIDDEN
from evr1_core.data.templates import DEFAULT, Templates, shipped
from evr1_core.errors import MediaError, RequestError
from evr1_core.types import Budget, Clip, Exclusion, MediaRef, PatchFactors, Prompt, Sample

if TYPE_CHECKING:
    from torch import Tensor

    from evr1_core.media.plan import Plan

T = TypeVar("T")
_PLACE = re.compile("\0([0-9]+)\0")
_templates = Templates()


class Store(Protocol):
    """What the builder asks of `evr1_core.media.store.MediaStore`."""

    def load_many(self, refs: Sequence[MediaRef], budget: Budget, factors: PatchFactors, workers: int) -> list[Clip | MediaError]: ...

    def plan(self, ref: MediaRef, budget: Budget, factors: PatchFactors) -> Plan: ...


class Adapter(Protocol):
    """What the builder asks of a model family; `evr1_core.policy.ModelAdapter` says what each does."""

    factors: PatchFactors
    special_texts: frozenset[str]

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]: ...

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Tensor]]: ...

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int: ...


class _Text(NamedTuple):
    messages: tuple[dict[str, Any], ...]
    text: str
    prefill: str


class PromptFault(RequestError):
    """No prompt can be made of a sample."""

    def __init__(self, sample_id: str, code: str, detail: str) -> None:
        self.exclusion = Exclusion(sample_id, code, detail)
        super().__init__(f"sample {sample_id!r}: {code}: {detail}")

    def __reduce__(self) -> tuple[type[PromptFault], tuple[str, str, str]]:
        return PromptFault, (self.exclusion.sample_id, self.exclusion.reason, self.exclusion.detail)


def render(
    sample: Sample,
    template: str | None = None,
    system: str | None = None,
    use: Mapping[str, str] | None = None,
    templates: Templates | None = None,
) -> tuple[dict[str, Any], ...]:
    """Chat messages of a sample: an optional system turn, and one user turn whose media stand at their marks.

    `template` None is the template of the sample's problem type (`use` as in `rewards.use`). Raises RequestError for a
    template that isn't there, that needs a column the row lacks, or that doesn't print the question exactly once.
    """
    name = template or template_for(sample.problem_type, use)
    try:
        text = (templates or _templates).render(name, _variables(sample))
    except RequestError as error:
        raise RequestError(f"sample {sample.id!r}: {error}") from None
    content: list[dict[str, Any]] = []
    pieces = _PLACE.split(text)
    if pieces[1::2] != [str(index) for index in range(len(sample.media))]:
        raise RequestError(f"sample {sample.id!r}: template {name}: must print `problem` exactly once and unchanged: it holds the media")
    for index, piece in enumerate(pieces):
        if index % 2:
            content.append({"type": sample.media[int(piece)].kind})
        elif piece:
            content.append({"type": "text", "text": piece})
    turns = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
    return (*turns, {"role": "user", "content": content})


def template_for(problem_type: str, use: Mapping[str, str] | None = None) -> str:
    """Name of the template for a problem type: the one its reward names, else the one called like the reward, else the default."""
    from evr1_core.plugins import reward_for

    spec = reward_for(problem_type, use or {})
    return spec.template or (spec.name if spec.name in shipped() else DEFAULT)


class PromptBuilder:
    """Makes prompts for one model, one budget and one template choice."""

    def __init__(
        self,
        adapter: Adapter,
        store: Store,
        budget: Budget,
        template: str | None = None,
        *,
        system: str | None = None,
        use: Mapping[str, str] | None = None,
        max_prompt_tokens: int | None = None,
        overlong: Literal["exclude", "error"] = "exclude",
        bad_rows: Literal["error", "exclude"] = "error",
        workers: int | None = None,
    ) -> None:
        self.adapter, self.store, self.budget, self.template = adapter, store, budget, template
        self.system, self.use, self.max_prompt_tokens = system, dict(use or {}), max_prompt_tokens
        self.overlong, self.bad_rows = overlong, bad_rows
        self.workers = workers or min(8, os.cpu_count() or 1)
        """Media loaded at a time."""
        self.templates = Templates()
        self._plans: dict[MediaRef, Plan] = {}

    def build(self, sample: Sample) -> Prompt:
        """The prompt of one sample. Raises PromptFault (media, length, control text) and RequestError (template)."""
        text = self._text(sample)
        return self._encode(sample, text, self._load(sample.media))

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        """Prompts and exclusions, together one per sample. A medium that several rows show is loaded once.

        Raises PromptFault where `overlong` or `bad_rows` say so.
        """
        texts = [self._try(self._text, sample) for sample in samples]
        readable = [sample for sample, text in zip(samples, texts, strict=True) if not isinstance(text, PromptFault)]
        loaded = self._load([ref for sample in readable for ref in sample.media])
        made = [
            text if isinstance(text, PromptFault) else self._try(self._encode, sample, text, loaded)
            for sample, text in zip(samples, texts, strict=True)
        ]
        prompts = [prompt for prompt in made if isinstance(prompt, Prompt)]
        return prompts, [fault.exclusion for fault in made if isinstance(fault, PromptFault)]

    def plan_tokens(self, sample: Sample) -> int:
        """Tokens of `build(sample)` from headers alone: nothing is decoded. Raises PromptFault for unusable media."""
        text = self._text(sample).text
        try:
            plans = [self._plan(ref) for ref in sample.media]
        except MediaError as error:
            raise _media_fault(sample, error) from error
        return self.adapter.plan_tokens(text, plans)

    def check_length(self, sample: Sample, tokens: int) -> None:
        """Raises PromptFault when a prompt of so many tokens is longer than `max_prompt_tokens`."""
        if self.max_prompt_tokens is not None and tokens > self.max_prompt_tokens:
            raise PromptFault(
                sample.id,
                "too_long",
                f"{tokens} prompt tokens, allowed are {self.max_prompt_tokens}; raise data.max_prompt_tokens or lower the media budget",
            )

    def _try(self, make: Callable[..., T], sample: Sample, *more: Any) -> T | PromptFault:
        """What `make` gives, or the fault of the sample where such a sample is to be left out."""
        try:
            return make(sample, *more)
        except PromptFault as fault:
            if (self.overlong if fault.exclusion.reason == "too_long" else self.bad_rows) == "error":
                raise
            return fault

    def _text(self, sample: Sample) -> _Text:
        messages = render(sample, self.template, self.system, self.use, self.templates)
        shown = "\n".join(item["text"] for item in messages[-1]["content"] if item["type"] == "text")
        found = sorted(text for text in self.adapter.special_texts if text and text in shown)
        if found:
            raise PromptFault(sample.id, "special_token", f"the text holds {found[0]!r}, a control text of this model's chat format")
        return _Text(messages, *self.adapter.render(messages))

    def _load(self, refs: Sequence[MediaRef]) -> dict[MediaRef, Clip | MediaError]:
        """Each medium once."""
        distinct = list(dict.fromkeys(refs))
        loaded = self.store.load_many(distinct, self.budget, self.adapter.factors, self.workers) if distinct else []
        return dict(zip(distinct, loaded, strict=True))

    def _encode(self, sample: Sample, text: _Text, loaded: Mapping[MediaRef, Clip | MediaError]) -> Prompt:
        clips: list[Clip] = []
        for ref in sample.media:
            clip = loaded[ref]
            if isinstance(clip, MediaError):
                raise _media_fault(sample, clip) from clip
            clips.append(clip)
        try:
            token_ids, features = self.adapter.encode(text.text, clips)
        except ValueError as error:  # media and placeholders differ: a fault of adapter or template, never of one row
            raise RequestError(f"sample {sample.id!r}: {error}") from error
        self.check_length(sample, len(token_ids))
        return Prompt(sample, text.messages, text.text, tuple(token_ids), tuple(clips), features, text.prefill)

    def _plan(self, ref: MediaRef) -> Plan:
        if ref not in self._plans:
            self._plans[ref] = self.store.plan(ref, self.budget, self.adapter.factors)
        return self._plans[ref]


def _variables(sample: Sample) -> dict[str, Any]:
    """What a template may print. Columns that tell the answer are not among it."""
    extra = {name: value for name, value in sample.extra.items() if name not in HIDDEN}
    return {
        **extra,
        "problem": _with_places(sample),
        "options": option_lines(sample.options),
        "problem_type": sample.problem_type,
        "data_type": sample.data_type,
        "source": sample.source,
        "scoring": dict(sample.scoring),
    }


def _with_places(sample: Sample) -> str:
    """The question with NUL, index, NUL at the place of each medium; media without a mark stand in front."""
    marked = len(MARK.findall(sample.problem))
    unmarked = len(sample.media) - marked
    indices = iter(range(unmarked, len(sample.media)))
    text = MARK.sub(lambda _: f"\0{next(indices)}\0", sample.problem)
    text = re.sub(r"\\(<(?:image|video)>)", r"\1", text)
    return "".join(f"\0{index}\0" for index in range(unmarked)) + text


def _media_fault(sample: Sample, error: MediaError) -> PromptFault:
    return PromptFault(sample.id, f"{error.code}_media", str(error))

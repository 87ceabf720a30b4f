"""The one prompt builder of training, validation and evaluation: sample -> messages -> text and clips -> token ids.

    render(sample)  ->  one user turn: text, {"type": "video"}, text, ...     (jinja2 template, split at the media's places)
    adapter.render  ->  text with one placeholder per medium
    store.load_many ->  clips, in the order of the placeholders
    adapter.encode  ->  token ids and model inputs

Only a mark of the question that has a medium becomes a placeholder. A control text of the chat format in a row is
refused, not tokenised. A prompt that is too long is refused, or its media are made smaller (`shrink`); it is never cut.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from evr1_core.data.lengths import Lengths, Row
from evr1_core.data.media_fields import MARK
from evr1_core.data.options import option_lines
from evr1_core.data.rows import HIDDEN
from evr1_core.data.shrink import changes
from evr1_core.data.templates import DEFAULT, Templates, shipped
from evr1_core.errors import MediaError, RequestError
from evr1_core.types import Budget, Clip, Exclusion, MediaRef, PatchFactors, Prompt, Sample, Wording

if TYPE_CHECKING:
    from torch import Tensor

    from evr1_core.media.plan import Plan

T = TypeVar("T")
_log = logging.getLogger(__name__)
_PLACE = re.compile("\0([0-9]+)\0")
_templates = Templates()


class Store(Protocol):
    """What the builder asks of `evr1_core.media.store.MediaStore`."""

    def load_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int
    ) -> Sequence[Clip | MediaError]: ...

    def plan_many(
        self, refs: Sequence[MediaRef], budget: Budget | Sequence[Budget], factors: PatchFactors, workers: int
    ) -> Sequence[Plan | MediaError]: ...


class Adapter(Protocol):
    """What the builder asks of a model family; `evr1_core.policy.ModelAdapter` says what each does."""

    directory: Path
    factors: PatchFactors
    special_texts: frozenset[str]

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]: ...

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Tensor]]: ...

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int: ...


class PromptText(NamedTuple):
    """A prompt before its media; the fields mean what they mean in `Prompt`."""

    messages: tuple[dict[str, Any], ...]
    text: str
    prefill: str


FrameTimes = Callable[[], tuple[tuple[float, ...], ...]]
"""Seconds of the frames of each medium of a sample, planned from headers; empty for one that can't be used."""

Ask = Callable[[Sample, FrameTimes], Wording | None]
"""How a sample is worded; None leaves it to the template."""

Loaded = Mapping[tuple[MediaRef, Budget], Clip | MediaError]


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


def worded(sample: Sample, wording: Wording) -> tuple[dict[str, Any], ...]:
    """Chat messages of a sample with a wording of its own. Raises RequestError when not every medium has exactly one place."""
    places = [piece for piece in wording.content if isinstance(piece, int)]
    if sorted(places) != list(range(len(sample.media))):
        raise RequestError(f"sample {sample.id!r}: the wording places media {places}, the sample has {len(sample.media)}")
    content = [
        {"type": sample.media[piece].kind} if isinstance(piece, int) else {"type": "text", "text": piece}
        for piece in wording.content
        if piece != ""
    ]
    system = [{"role": "system", "content": [{"type": "text", "text": wording.system}]}] if wording.system else []
    return (*system, {"role": "user", "content": content})


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
        ask: Ask | None = None,
        max_prompt_tokens: int | None = None,
        overlong: Literal["exclude", "shrink", "error"] = "exclude",
        bad_rows: Literal["error", "exclude"] = "error",
        workers: int | None = None,
    ) -> None:
        self.adapter, self.store, self.budget, self.template = adapter, store, budget, template
        self.system, self.use, self.max_prompt_tokens = system, dict(use or {}), max_prompt_tokens
        self.overlong, self.bad_rows, self.ask = overlong, bad_rows, ask
        self.workers = workers or min(8, os.cpu_count() or 1)
        """Media loaded at a time."""
        self.note: Callable[[str], None] = _log.warning
        """Where rows are named whose media were made smaller."""
        self.templates = Templates()
        self._template_names: dict[str, str] = {}
        self.lengths = Lengths(adapter, store, budget, self.workers)
        self._budgets: dict[tuple[str, tuple[MediaRef, ...]], Budget | PromptFault] = {}

    @property
    def shrink_to(self) -> int | None:
        """Tokens that longer rows are made to fit; None leaves their media as they are."""
        return self.max_prompt_tokens if self.overlong == "shrink" else None

    def build(self, sample: Sample) -> Prompt:
        """The prompt of one sample. Raises PromptFault (media, length, control text) and RequestError (template)."""
        text = self.text(sample)
        self._fit([(sample, text)])
        budget = self.budget_of(sample)
        return self._encode(sample, text, self._load([(ref, budget) for ref in sample.media]))

    def build_batch(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        """Prompts and exclusions, together one per sample. A medium that several rows show is loaded once, and rows that show the
        same media share one mapping of features.

        Raises PromptFault where `overlong` or `bad_rows` say so.
        """
        texts = [self._try(self.text, sample) for sample in samples]
        self._fit([(sample, text) for sample, text in zip(samples, texts, strict=True) if isinstance(text, PromptText)])
        # A row that was found too long is refused without loading its media.
        texts = [
            text if isinstance(text, PromptFault) or isinstance(fault := self._try(self.budget_of, sample), Budget) else fault
            for sample, text in zip(samples, texts, strict=True)
        ]
        readable = [sample for sample, text in zip(samples, texts, strict=True) if isinstance(text, PromptText)]
        loaded = self._load([(ref, self.budget_of(sample)) for sample in readable for ref in sample.media])
        features: dict[tuple[int, ...], Mapping[str, Tensor]] = {}
        made = [
            text if isinstance(text, PromptFault) else self._try(self._encode, sample, text, loaded, features)
            for sample, text in zip(samples, texts, strict=True)
        ]
        prompts = [prompt for prompt in made if isinstance(prompt, Prompt)]
        return prompts, [fault.exclusion for fault in made if isinstance(fault, PromptFault)]

    def plan_tokens(self, sample: Sample) -> int:
        """Tokens of `build(sample)` from headers alone: nothing is decoded. Raises PromptFault for unusable media."""
        [found] = self.lengths.measure([self.row(sample)], self.shrink_to)
        if isinstance(found, MediaError):
            raise media_fault(sample, found) from found
        return found.length.tokens

    def text(self, sample: Sample) -> PromptText:
        """The prompt before its media. Raises PromptFault (control text) and RequestError (template)."""
        wording = self.ask(sample, lambda: self.frame_times(sample)) if self.ask else None
        if wording is None:
            messages = render(sample, self.template_of(sample.problem_type), self.system, templates=self.templates)
        else:
            messages = worded(sample, wording)
        shown = "\n".join(item["text"] for item in messages[-1]["content"] if item["type"] == "text")
        found = sorted(text for text in self.adapter.special_texts if text and text in shown)
        if found:
            raise PromptFault(sample.id, "special_token", f"the text holds {found[0]!r}, a control text of this model's chat format")
        text, prefill = self.adapter.render(messages)
        opening = wording.prefill if wording else ""
        return PromptText(messages, text + opening, prefill + opening)

    def frame_times(self, sample: Sample) -> tuple[tuple[float, ...], ...]:
        """Seconds of the frames that each medium will give under the budget, from headers; empty where it can't be used."""
        found = self.store.plan_many(sample.media, self.budget_of(sample), self.adapter.factors, self.workers)
        return tuple(() if isinstance(plan, MediaError) else tuple(plan.times) for plan in found)

    def template_of(self, problem_type: str) -> str:
        """Name of the template for a problem type."""
        if problem_type not in self._template_names:
            self._template_names[problem_type] = self.template or template_for(problem_type, self.use)
        return self._template_names[problem_type]

    def row(self, sample: Sample) -> Row:
        """What the length of its prompt depends on. Raises as `text` does."""
        return Row(self.lengths.base(self.text(sample).text, sample.media), sample.media)

    def budget_of(self, sample: Sample) -> Budget:
        """What the media of a sample may spend. Raises PromptFault for a row that was found too long for any budget."""
        found = self._budgets.get((sample.id, sample.media), self.budget)
        if isinstance(found, PromptFault):
            raise found
        return found

    def settled(self, sample: Sample) -> Budget | PromptFault | None:
        """What was found for this sample; None where it wasn't looked at."""
        return self._budgets.get((sample.id, sample.media))

    def settle(self, sample: Sample, budget: Budget) -> None:
        """From now on this sample gets `budget`; its headers need not be read again."""
        self._budgets[sample.id, sample.media] = budget

    def too_long(self, sample: Sample, tokens: int, least: int | None = None) -> PromptFault:
        """The fault of a prompt of so many tokens; `least` is what its media could be reduced to."""
        remedy = "raise data.max_prompt_tokens or lower the media budget"
        if least is not None and sample.media:
            remedy = f"with its media as small as they may be it has {least}; raise data.max_prompt_tokens"
        return PromptFault(sample.id, "too_long", f"{tokens} prompt tokens, allowed are {self.max_prompt_tokens}; {remedy}")

    def _fit(self, rows: Sequence[tuple[Sample, PromptText]]) -> None:
        """Settle the budget of each row that wasn't planned before, where media may be made smaller."""
        limit = self.shrink_to
        fresh = [(sample, text) for sample, text in rows if sample.media and (sample.id, sample.media) not in self._budgets]
        if limit is None or not fresh:
            return
        wanted = [Row(self.lengths.base(text.text, sample.media), sample.media) for sample, text in fresh]
        for (sample, _), found in zip(fresh, self.lengths.measure(wanted, limit), strict=True):
            if isinstance(found, MediaError):
                continue  # loading says the same, and with what decoding finds beside
            if found.least is not None:
                self._budgets[sample.id, sample.media] = self.too_long(sample, found.full, found.least)
                continue
            self.settle(sample, found.length.budget)
            if found.length.budget != self.budget:
                self.note(shrunk(sample.id, found.full, found.length.tokens, self.budget, found.length.budget))

    def _try(self, make: Callable[..., T], sample: Sample, *more: Any) -> T | PromptFault:
        """What `make` gives, or the fault of the sample where such a sample is to be left out."""
        try:
            return make(sample, *more)
        except PromptFault as fault:
            if (self.overlong if fault.exclusion.reason == "too_long" else self.bad_rows) == "error":
                raise
            return fault

    def _load(self, wanted: Sequence[tuple[MediaRef, Budget]]) -> Loaded:
        """Each medium once per budget."""
        distinct = list(dict.fromkeys(wanted))
        if not distinct:
            return {}
        refs, budgets = [ref for ref, _ in distinct], [budget for _, budget in distinct]
        return dict(zip(distinct, self.store.load_many(refs, budgets, self.adapter.factors, self.workers), strict=True))

    def _encode(
        self, sample: Sample, text: PromptText, loaded: Loaded, shared: dict[tuple[int, ...], Mapping[str, Tensor]] | None = None
    ) -> Prompt:
        budget = self.budget_of(sample)
        clips: list[Clip] = []
        for ref in sample.media:
            clip = loaded[ref, budget]
            if isinstance(clip, MediaError):
                raise media_fault(sample, clip) from clip
            clips.append(clip)
        try:
            token_ids, features = self.adapter.encode(text.text, clips)
        except ValueError as error:  # media and placeholders differ: a fault of adapter or template, never of one row
            raise RequestError(f"sample {sample.id!r}: {error}") from error
        if self.max_prompt_tokens is not None and len(token_ids) > self.max_prompt_tokens:
            raise self.too_long(sample, len(token_ids))
        if clips and shared is not None:  # features are of the media alone
            features = shared.setdefault(tuple(map(id, clips)), features)
        return Prompt(sample, text.messages, text.text, tuple(token_ids), tuple(clips), features, text.prefill)


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


def media_fault(sample: Sample, error: MediaError) -> PromptFault:
    return PromptFault(sample.id, f"{error.code}_media", str(error))


def shrunk(sample_id: str, full: int, tokens: int, whole: Budget, budget: Budget) -> str:
    """What is noted of a row whose media were made smaller."""
    return f"{sample_id}: media made smaller, {full} -> {tokens} prompt tokens ({changes(whole, budget)})"

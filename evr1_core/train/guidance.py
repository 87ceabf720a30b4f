"""Mix-policy: an offline trajectory of a row joins the policy's own answers to it (EasyVideoR1, arXiv 2604.16893; LUFFY, arXiv 2504.14945).

    always   n - 1 own answers are drawn, the trajectory is the n-th
    below    n own answers are drawn; where their mean accuracy is below the threshold, the trajectory takes the place of the last one

The trajectory is an answer like any other: tokenised as the policy would have written it, ended by the end of the turn, scored
by the same rewards. What marks it is `Rollout.provenance`; an algorithm may weigh it otherwise than own answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evr1_core.config.models import GuidanceSection
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.rollout.engine import completion_seed
from evr1_core.scoring.score import evaluation_accuracy
from evr1_core.types import Completion, Group, Prompt, Rollout


class Guidance:
    """Chooses, checks and places trajectories. Which one follows from seed, sample and epoch alone: a resumed run chooses the same."""

    def __init__(self, section: GuidanceSection, adapter: ModelAdapter, *, max_tokens: int, seed: int, note: Callable[[str], None]) -> None:
        """`max_tokens`: longest answer, its end of turn counted. `note` hears each refused trajectory once."""
        self.section, self.adapter, self.max_tokens, self.seed = section, adapter, max_tokens, seed
        self.refused: dict[tuple[str, int], str] = {}
        """(sample id, number of the trajectory from 0) -> why it can't be used."""
        self.offered = 0
        """Prompts that had a usable trajectory."""
        self._note = note
        self._endings = turn_endings(adapter) if self.active else ()

    @property
    def active(self) -> bool:
        return self.section.mode != "off"

    def candidates(self, prompts: Sequence[Prompt], epoch: int) -> dict[int, Completion]:
        """Place of a prompt -> the trajectory that may join its group. Those of a row take turns, epoch by epoch."""
        if not self.active:
            return {}
        found: dict[int, Completion] = {}
        for place, prompt in enumerate(prompts):
            usable = [one for number in range(len(prompt.sample.offline)) if (one := self._answer(prompt, number)) is not None]
            if usable:
                found[place] = usable[(completion_seed(self.seed, prompt.sample.id, 0) + epoch) % len(usable)]
        self.offered += len(found)
        return found

    def own_answers(self, n: int, guided: bool) -> int:
        """How many answers the policy draws for a prompt that has a candidate or not."""
        return n - 1 if guided and self.section.mode == "always" else n

    def wanted(self, groups: Sequence[Group], candidates: Mapping[int, Completion]) -> dict[int, Completion]:
        """The candidates that join, once the own answers are scored."""
        if self.section.mode == "always":
            return dict(candidates)
        return {place: one for place, one in candidates.items() if below(groups[place], self.section.threshold)}

    def mix(self, group: Group, trajectory: Rollout) -> Group:
        """The group with the trajectory as its last answer."""
        kept = len(group.rollouts) - (self.section.mode != "always")
        own, displaced = group.rollouts[:kept], group.rollouts[kept:]
        return replace(group, rollouts=(*own, replace(trajectory, provenance="offline")), displaced=displaced)

    def counters(self) -> dict[str, int]:
        """Since the start of the process."""
        return {"candidates": self.offered, "refused": len(self.refused)}

    def metrics(self, groups: Sequence[Group], since: Mapping[str, int]) -> dict[str, float]:
        """`guidance/*` of a step: prompts that had a usable trajectory, trajectories found unusable, groups that got one, its shares of
        answers and tokens, its accuracy. Nothing when off."""
        if not self.active:
            return {}
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        offline = [rollout for rollout in rollouts if rollout.provenance == "offline"]
        known = [value for rollout in offline if (value := evaluation_accuracy(rollout.score)) is not None]
        tokens, given = (sum(len(one.completion.token_ids) for one in some) for some in (rollouts, offline))
        found: dict[str, float] = {name: count - since[name] for name, count in self.counters().items()}
        found |= {"groups": len(offline), "share": len(offline) / max(1, len(rollouts)), "token_share": given / max(1, tokens)}
        found |= {"accuracy": sum(known) / len(known)} if known else {}
        return {f"guidance/{name}": value for name, value in found.items()}

    def _answer(self, prompt: Prompt, number: int) -> Completion | None:
        """A trajectory as the policy would have written it; None where it can't be, which is noted."""
        key = (prompt.sample.id, number)
        if key in self.refused:
            return None
        text = without_prefill(prompt.sample.offline[number], prompt.prefill)
        found = tokenise(text, self.adapter, self.max_tokens, self._endings)
        if isinstance(found, Completion):
            return found
        self.refused[key] = found
        which = f" {number + 1} of {len(prompt.sample.offline)}" if len(prompt.sample.offline) > 1 else ""
        self._note(f"{prompt.sample.id}: trajectory{which} is refused: {found}")
        return None


def below(group: Group, threshold: float) -> bool:
    """Whether the mean accuracy of the own answers is below; without any accuracy nothing is known, so False."""
    known = [value for rollout in group.rollouts if (value := evaluation_accuracy(rollout.score)) is not None]
    return bool(known) and sum(known) / len(known) < threshold


def without_prefill(text: str, prefill: str) -> str:
    """The trajectory without what the chat template has already put at the start of the assistant's turn."""
    text = text.strip()
    opening = prefill.strip()
    return text[len(opening) :].lstrip() if opening and text.startswith(opening) else text


def turn_endings(adapter: ModelAdapter) -> tuple[str, ...]:
    """Texts that end a turn, with which stored answers often close."""
    stops = set(adapter.stop_token_ids)
    return tuple(sorted(text for text in adapter.special_texts if text and set(adapter.tokenize(text)) <= stops))


def tokenise(text: str, adapter: ModelAdapter, max_tokens: int, endings: Sequence[str] = ()) -> Completion | str:
    """A text as an answer that ends with the end of the turn, or why it can't be one: `empty`, `media_token`, `control_text`, `too_long`.

    One of `endings` that the text brings along is not doubled. Media tokens would break the forward pass; other control
    texts the policy would learn to write.
    """
    text = text.rstrip()
    while ending := next((one for one in endings if text.endswith(one)), ""):
        text = text.removesuffix(ending).rstrip()
    if not text:
        return "empty: it holds no text"
    ids = adapter.tokenize(text)
    media = sum(token in adapter.forbidden_token_ids for token in ids)
    if media:
        return f"media_token: it holds {media} tokens that stand for media"
    controls = sorted(control for control in adapter.special_texts if control and control in text)
    if controls:
        return f"control_text: it holds {controls[0]!r}, a control text of this model's chat format"
    ids.append(adapter.stop_token_ids[0])
    if len(ids) > max_tokens:
        return f"too_long: {len(ids)} tokens with the end of the turn, rollout.max_tokens allows {max_tokens}"
    return Completion(tuple(ids), (), adapter.decode(ids), "stop")

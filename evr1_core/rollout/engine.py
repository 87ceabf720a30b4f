"""What the core asks of a rollout engine, and how one is opened.

An engine draws n answers per prompt from the current weights. It sees the very prompt ids the trainer sees, never
samples a media token, reports log-probabilities of the distribution it drew from, and forgets everything computed
with old weights when new ones arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from evr1_core import plugins
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.specs import EngineSpec
from evr1_core.types import Completion, Prompt, Sampling

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class PromptMismatch(Evr1Error):
    """Engine and trainer built different token ids for one sample: training on them would be silently wrong.

    It stands in the place of that prompt's answers; the other prompts are answered.
    """

    def __init__(self, sample_id: str, detail: str) -> None:
        self.sample_id, self.detail = sample_id, detail
        super().__init__(f"sample {sample_id}: {detail}")


Answers = list[Completion] | PromptMismatch
"""What an engine gives for one prompt."""


@runtime_checkable
class Engine(Protocol):
    """A rollout engine. Plugins are built as `Engine(context, options)`.

    One training step calls `wake`, `generate`, `sleep`, `load_weights`, in this order. In a worker group (`context.ranks`) every
    rank makes these calls. An engine that is spread over k neighbouring ranks says so with an attribute `ranks_per_engine`:
    those ranks ask the same prompts in the same order, and each gets all the answers.
    """

    weight_version: int
    """Number of weight updates received; stamped on every completion."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Answers]:
        """`sampling.n` completions for each prompt, in the order of `prompts`; a PromptMismatch for a prompt that it built otherwise."""
        ...

    def sleep(self) -> None:
        """Answers are not needed until new weights come: give the accelerator's memory to the trainer. May do nothing."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take every weight once and drop every cache that old ones filled: prefix, multimodal, encoder.

        Raises Evr1Error when a name is unknown or given twice, or a weight of the engine is missing.
        """
        ...

    def wake(self) -> None:
        """Be ready to answer; does nothing when awake. Raises Evr1Error when the engine can't go on."""
        ...

    def close(self) -> None:
        """Give back memory and processes."""
        ...


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What every engine needs to know."""

    adapter: ModelAdapter
    dtype: str
    """`bfloat16` or `float32`."""
    device: str
    max_prompt_tokens: int
    max_tokens: int
    seed: int
    max_images: int = 1
    """Most images in one prompt."""
    max_videos: int = 1
    """Most videos in one prompt."""
    attention: str = "auto"
    """Attention of an engine that loads the model itself, by the names of `model.attention`."""
    model: PreTrainedModel | None = None
    """The policy's own module when engine and policy live in one process: an engine may run it directly."""
    ranks: int = 0
    """Processes of the torch.distributed world that this one has joined, each of which opens the engine now; 0 is no world. The world
    belongs to the trainer: an engine makes groups of its own in it and leaves it standing. One that can't raises RequestError."""


def choose_engine(name: str, device: str) -> EngineSpec:
    """The named engine, or for `auto` the highest-ranked one that is installed and serves the device."""
    if name != "auto":
        return plugins.engine(name)
    found = [spec for spec in plugins.catalogue().specs(EngineSpec) if spec.target is not None and device in spec.devices]
    fitting = [spec for spec in found if not plugins.missing_requirements(spec)]
    if not fitting:
        raise RequestError(f"no rollout engine for device {device!r} is installed; `evr1 plugins list` shows what is there")
    return max(fitting, key=lambda spec: spec.rank)


def open_engine(name: str, options: Mapping[str, Any], context: EngineContext) -> Engine:
    """The engine `name` (or `auto`), started."""
    spec = choose_engine(name, context.device)
    plugins.check_requirements(spec)
    if spec.target is None:
        raise RequestError(f"engine {spec.name!r} serves evaluation alone, it takes no new weights; `evr1 plugins list` shows the others")
    checked = plugins.options(spec, options, where="rollout.options")
    return plugins.resolve(spec.target)(context, checked)


def ranks_per_engine(engine: Engine) -> int:
    """Neighbouring ranks that form one engine: ranks 0 to k - 1 the first, k to 2 k - 1 the second."""
    return getattr(engine, "ranks_per_engine", 1)


def update_engine(engine: Engine, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
    """`load_weights` in a worker group: `weights` are used up whatever the engine does.

    Reason: each weight is gathered from all ranks when it is asked for. If the engine of one rank refused a weight and asked for no
    more, the others would wait for it until the collective's timeout; so they finish, and the error is told at once.
    """
    rest = iter(weights)
    try:
        engine.load_weights(rest, version)
    except Exception:
        use_up(rest)
        raise
    use_up(rest)


def use_up(items: Iterable[object]) -> None:
    """Take part in making each item, and hold none."""
    for _ in items:
        pass


def all_answered(found: Sequence[Answers]) -> list[list[Completion]]:
    """The answers, where no prompt may be left out. Raises PromptMismatch."""
    for one in found:
        if isinstance(one, PromptMismatch):
            raise one
    return [one for one in found if not isinstance(one, PromptMismatch)]


def completion_seed(seed: int, sample_id: str, index: int) -> int:
    """Seed of one completion (63 bit): from the run's seed, the sample and the index, never from rank or batch."""
    digest = hashlib.sha256(f"{seed}\0{sample_id}\0{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1

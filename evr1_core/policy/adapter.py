"""What the core asks of a model family. Everything that differs between families is behind this protocol.

Shapes: L tokens of one row, T frames, `[3, L]` multimodal rotary positions (temporal, height, width).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from evr1_core.types import Clip, PatchFactors

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from evr1_core.media.plan import Plan
    from evr1_core.policy.sequence import SequenceGroup


@runtime_checkable
class ModelAdapter(Protocol):
    """A model family's road from messages and frames to token ids, features, positions and weights. Made as `Family(directory, chat)`."""

    directory: Path
    """Local directory with config, tokenizer and processor files."""
    chat: Mapping[str, Any]
    """Arguments of the chat template (`model.chat`), which `render` hands on. A family that can tell refuses those without effect."""
    factors: PatchFactors
    stop_token_ids: tuple[int, ...]
    forbidden_token_ids: tuple[int, ...]
    """Tokens that stand for media and must never be sampled: one of them in an answer breaks the forward pass."""
    special_texts: frozenset[str]
    """Texts that the tokenizer turns into control tokens; a row that contains one is refused."""

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        """Chat messages -> (prompt text with one placeholder per medium, text prefilled in the assistant's turn)."""
        ...

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Tensor]]:
        """Prompt text and its media -> (expanded token ids, model inputs of the vision tower).

        Frames are final: nothing is sampled or resized here. Raises ValueError when media and placeholders differ.
        """
        ...

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int:
        """Length of `encode(...)` from planned sizes alone, without a decoded frame.

        A medium adds the same number of tokens wherever it stands: the data plan adds them up.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Token ids -> text without special tokens."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Plain text -> ids, control texts included as control tokens. For answers that are replayed."""
        ...

    def position_ids(self, token_ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
        """Rotary positions of a row, int64 [3, L]; tokens after the prompt count on from its largest position.

        Raises ValueError when a run of media tokens and the features of its medium differ in number.
        """
        ...

    def model_inputs(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        rows: Sequence[Mapping[str, Tensor]],
        *,
        lengths: Sequence[int] | None = None,
        always_vision: bool = False,
    ) -> dict[str, Any]:
        """Arguments of `model.base_model(...)` beside positions, mask and cache: ids, and vision features of the rows.

        `rows` holds the features of each row in order, empty for a row of text. The vision tower runs once, over images and
        videos of all rows together; rows that share one mapping (answers to one prompt) share its features. With
        `always_vision` it runs for rows of text too, on a dummy whose weight is 0: every process of a group then makes the
        same calls. `lengths` are those of rows packed into one sequence, for layers that carry a state along it.
        """
        ...

    def video_metadata(self, clip: Clip) -> dict[str, Any]:
        """The clip's clock in the form that processors and engines of this family read."""
        ...

    def load_model(self, dtype: torch.dtype, attention: str = "auto", device: str = "cpu") -> PreTrainedModel:
        """The trainable model of `directory`."""
        ...

    def empty_model(self, dtype: torch.dtype, attention: str = "auto", device: str = "cpu") -> PreTrainedModel:
        """That of `load_model` without its weights: the same modules, every parameter and buffer on the meta device.

        `device` is where it is going to run.
        """
        ...

    def parts(self, model: PreTrainedModel) -> dict[str, list[nn.Module]]:
        """Named parts that can be frozen, for example `vision`: each by its modules, so that no parameter is missed."""
        ...

    def blocks(self, model: PreTrainedModel) -> list[nn.Module]:
        """The repeated layers of vision tower and language model: the units that are sharded, recomputed and compiled."""
        ...

    def engine_weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """Every weight, by the names and in the layout of the family's releases, which rollout engines load.

        Of `model` only `state_dict()` is read: merged adapters and the weights of a checkpoint come in its place.
        """
        ...


@runtime_checkable
class SequenceParallel(Protocol):
    """What an adapter has beside `ModelAdapter` when ranks can share the tokens of its rows (`evr1_core.policy.sequence`)."""

    def sequence_parallel(self, model: PreTrainedModel, size: int) -> None:
        """Change `model` for groups of `size` ranks; it may be on the meta device, and is sharded afterwards.

        Called with `sequence_part=SequencePart` and all tokens of packed rows, `model.base_model(...)` then returns the
        hidden states of the part's tokens, as they are in one process. Without the argument nothing changes. Raises
        RequestError, with the numbers, for a size or settings that can't be.
        """
        ...

    def model_inputs(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        rows: Sequence[Mapping[str, Tensor]],
        *,
        lengths: Sequence[int] | None = None,
        always_vision: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> dict[str, Any]:
        """As in `ModelAdapter`. Ranks of `sequence` have the same rows, and the vision tower's work can be shared by them; every
        rank runs it equally often, and gets all features."""
        ...

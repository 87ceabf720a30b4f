"""Rows of prompt and answer through the model: log-probabilities of the answer tokens.

Packed, several rows share one sequence without padding; padded, each row is a line of a rectangle. Both give the same
log-probabilities and the same gradient.

Shapes: b rows, L tokens of the sequence, K answer tokens of all rows together, T of the longest answer, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from evr1_core.policy.adapter import ModelAdapter
from evr1_core.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD_BYTES = 1 << 30
"""Logits in float32 that are held at once; a vocabulary of 150,000 makes 24,000 answer tokens 14 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One prompt with one answer."""

    prompt: Prompt
    answer: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt.token_ids + self.answer

    def __len__(self) -> int:
        return len(self.prompt.token_ids) + len(self.answer)


def micro_batches(rows: Sequence[Row], limit: int, packing: bool) -> Iterator[list[int]]:
    """Indices of `rows` in order, cut so that one forward pass takes at most `limit` tokens (a longer row goes alone)."""
    batch: list[int] = []
    for index, row in enumerate(rows):
        sizes = [len(rows[i]) for i in batch] + [len(row)]
        tokens = sum(sizes) if packing else max(sizes) * len(sizes)
        if batch and tokens > limit:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def answer_logprobs(
    model: PreTrainedModel, adapter: ModelAdapter, rows: Sequence[Row], *, packing: bool, temperature: float, device: str
) -> Tensor:
    """Log-probability of every answer token at the sampling temperature, media tokens excluded: float32 [b, T], padded right with 0."""
    pack = _packed if packing else _padded
    inputs, where = pack(adapter, rows)
    features = adapter.merge([row.prompt.features for row in rows])
    inputs = {name: tensor.to(device) for name, tensor in {**inputs, **features}.items()}
    hidden = model.base_model(**inputs, use_cache=False)[0]
    hidden = hidden.reshape(-1, hidden.shape[-1])[where.to(device)]
    targets = torch.tensor([token for row in rows for token in row.answer], device=device)
    head = model.get_output_embeddings()
    assert head is not None
    flat = head_logprobs(hidden, head, targets, temperature, torch.tensor(adapter.forbidden_token_ids, device=device))
    return nn.utils.rnn.pad_sequence(list(flat.split([len(row.answer) for row in rows])), batch_first=True)


@torch.no_grad()
def frozen_logprobs(rows: Sequence[Row], batches: Iterator[list[int]], forward: Callable[[Sequence[Row]], Tensor]) -> list[Tensor]:
    """Log-probabilities [n_i] of every row without a graph; `batches` are places in `rows`, one forward pass each."""
    found: list[Tensor] = []
    for indices in batches:
        part = [rows[index] for index in indices]
        found += [line[: len(row.answer)] for row, line in zip(part, forward(part), strict=True)]
    return found


def _packed(adapter: ModelAdapter, rows: Sequence[Row]) -> tuple[dict[str, Tensor], Tensor]:
    """One sequence. Three conditions keep the rows apart, each silently leaking when missed: position ids of 4 rows
    whose first restarts at 0 for every row, no attention mask, and no cache."""
    ids = torch.tensor([token for row in rows for token in row.token_ids])[None]
    positions = torch.cat(
        [torch.cat([torch.arange(len(row))[None], adapter.position_ids(row.token_ids, row.prompt.features)]) for row in rows],
        dim=1,
    )[:, None]
    starts = torch.tensor([0, *[len(row) for row in rows]]).cumsum(0)
    where = [_before_answer(row) + start for row, start in zip(rows, starts.tolist(), strict=False)]
    return {"input_ids": ids, "position_ids": positions}, torch.cat(where)


def _padded(adapter: ModelAdapter, rows: Sequence[Row]) -> tuple[dict[str, Tensor], Tensor]:
    """A rectangle, padded right."""
    longest = max(len(row) for row in rows)
    ids = torch.full((len(rows), longest), adapter.stop_token_ids[0])
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    positions = torch.zeros(3, len(rows), longest, dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row.token_ids)
        mask[index, : len(row)] = 1
        positions[:, index, : len(row)] = adapter.position_ids(row.token_ids, row.prompt.features)
    where = [_before_answer(row) + index * longest for index, row in enumerate(rows)]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, torch.cat(where)


def _before_answer(row: Row) -> Tensor:
    """Places whose output predicts the answer's tokens."""
    start = len(row.prompt.token_ids) - 1
    return torch.arange(start, start + len(row.answer))


def head_logprobs(hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, forbidden: Tensor) -> Tensor:
    """Hidden states [K, D] -> log-probabilities of `targets` [K], in pieces of bounded memory."""
    vocabulary = int(head.weight.shape[0])  # type: ignore[union-attr, arg-type]
    size = max(1, HEAD_BYTES // (4 * vocabulary))
    if len(targets) <= size:
        return _logprobs(hidden, head, targets, temperature, forbidden)
    pieces = [
        checkpoint(_logprobs, part, head, wanted, temperature, forbidden, use_reentrant=False)
        for part, wanted in zip(hidden.split(size), targets.split(size), strict=True)
    ]
    return torch.cat(pieces)  # type: ignore[arg-type]


def _logprobs(hidden: Tensor, head: nn.Module, targets: Tensor, temperature: float, forbidden: Tensor) -> Tensor:
    logits = head(hidden).float() / temperature
    logits = logits.index_fill(1, forbidden, -torch.inf)
    return logits.log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]


def as_rectangle(rows: Sequence[Sequence[Any]], fill: float, dtype: torch.dtype) -> Tensor:
    """Lists of different lengths -> [b, T], padded right."""
    longest = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=dtype).reshape(len(rows), longest)

"""Rows of prompt and answer through the model: log-probabilities of the answer tokens, and entropies where they are asked for.

Packed, several rows share one sequence without padding; padded, each row is a line of a rectangle. Both give the same
log-probabilities and the same gradient.

Shapes: b rows, L tokens of the sequence, T of the longest answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.policy.adapter import ModelAdapter
from evr1_core.policy.head import head_outputs
from evr1_core.policy.sequence import PART, SequenceGroup, SequencePart, share, shared_inputs
from evr1_core.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


class AnswerOutputs(nn.Module):
    """A model as one module from rows to log-probabilities: what shards its weights gathers them around `forward`."""

    def __init__(
        self, model: PreTrainedModel, adapter: ModelAdapter, *, always_vision: bool = False, sequence: SequenceGroup | None = None
    ) -> None:
        """`always_vision`: run the vision tower for rows of text too, as `ModelAdapter.model_inputs` says.

        `sequence`: ranks that share the tokens of each row; all of them call `forward` with the same rows and get the same
        outputs. `model` is changed for it. Raises RequestError when the family or the model can't be shared.
        """
        super().__init__()
        if sequence is not None:
            share(model, adapter, sequence)
        self.sequence = sequence
        self.model = model
        self.adapter = adapter
        self.always_vision = always_vision

    def forward(
        self, rows: Sequence[Row], *, packing: bool, temperature: float, device: str, entropies: bool = False
    ) -> tuple[Tensor, ...]:
        """(log-probabilities,), or (log-probabilities, entropies) of the same distributions: float32 [b, T] each, padded right with 0.

        Log-probabilities are those of every answer token at the sampling temperature, media tokens excluded. Raises
        Evr1Error, naming the sample, when the media tokens of a row and its features differ.
        """
        inputs, where = (_packed if packing else _padded)(self.adapter, rows)
        part = self._part(rows, inputs, packing, device)
        inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
        lengths = [len(row) for row in rows] if part is None else part.lengths.tolist()
        arguments = self.adapter.model_inputs(
            self.model,
            inputs.pop("input_ids"),
            [row.prompt.features for row in rows] + [{}] * (len(lengths) - len(rows)),
            lengths=lengths if packing else None,
            always_vision=self.always_vision,
            **({} if part is None else {"sequence": part.group}),
        )
        if part is not None:
            arguments[PART] = part
        hidden = self.model.base_model(**arguments, **inputs, use_cache=False)[0]
        targets = torch.tensor([token for row in rows for token in row.answer])
        mine = torch.ones(len(where), dtype=torch.bool)
        if part is not None:
            mine = part.mine(where)
            where, targets = where[mine] - part.start, targets[mine]
        hidden = hidden.reshape(-1, hidden.shape[-1])[where.to(device)]
        head = self.model.get_output_embeddings()
        assert head is not None
        forbidden = torch.tensor(self.adapter.forbidden_token_ids, device=device)
        answers = [len(row.answer) for row in rows]
        found = head_outputs(hidden, head, targets.to(device), temperature, forbidden, entropies)
        if part is not None:
            found = part.group.collect(torch.stack(found, dim=1), mine.to(device)).unbind(dim=1)
        return tuple(nn.utils.rnn.pad_sequence(list(flat.split(answers)), batch_first=True) for flat in found)

    def _part(self, rows: Sequence[Row], inputs: dict[str, Tensor], packing: bool, device: str) -> SequencePart | None:
        """The tokens of this rank, where ranks share them; pads `inputs` in place."""
        if self.sequence is None:
            return None
        if not packing:
            raise RequestError(f"cluster.sequence_parallel={self.sequence.size} shares out packed rows: it needs train.packing=true")
        # Rows that share their media have to do so on every rank.
        media: dict[int, int] = {}
        self.sequence.check_same(
            [(row.prompt.token_ids, row.answer, (media.setdefault(id(row.prompt.features), len(media)),)) for row in rows]
        )
        return shared_inputs(self.sequence, inputs, [len(row) for row in rows], self.adapter.stop_token_ids[0], device)


def answer_logprobs(
    model: PreTrainedModel, adapter: ModelAdapter, rows: Sequence[Row], *, packing: bool, temperature: float, device: str
) -> Tensor:
    """Log-probability of every answer token, float32 [b, T], as `AnswerOutputs` says; one forward pass."""
    return AnswerOutputs(model, adapter)(rows, packing=packing, temperature=temperature, device=device)[0]


@torch.no_grad()
def frozen_logprobs(rows: Sequence[Row], batches: Iterable[Sequence[int]], forward: Callable[[Sequence[Row]], Tensor]) -> list[Tensor]:
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
        [torch.cat([torch.arange(len(row))[None], _positions(adapter, row)]) for row in rows],
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
        positions[:, index, : len(row)] = _positions(adapter, row)
    where = [_before_answer(row) + index * longest for index, row in enumerate(rows)]
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}, torch.cat(where)


def _positions(adapter: ModelAdapter, row: Row) -> Tensor:
    """Checked row by row: over a whole batch, one token too many and one too few would cancel out."""
    try:
        return adapter.position_ids(row.token_ids, row.prompt.features)
    except ValueError as error:
        raise Evr1Error(f"sample {row.prompt.sample.id}: media tokens and vision features differ: {error}") from error


def _before_answer(row: Row) -> Tensor:
    """Places whose output predicts the answer's tokens."""
    start = len(row.prompt.token_ids) - 1
    return torch.arange(start, start + len(row.answer))


def as_rectangle(rows: Sequence[Sequence[Any]], fill: float, dtype: torch.dtype) -> Tensor:
    """Lists of different lengths -> [b, T], padded right."""
    longest = max((len(row) for row in rows), default=0)
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=dtype).reshape(len(rows), longest)

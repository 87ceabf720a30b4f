"""Options that every algorithm has. A plugin's options model extends this one and may set other defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from evr1_core.config.models import Section

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum-norm"]


class AlgorithmOptions(Section):
    """What the training loop itself reads of an algorithm's options."""

    aggregation: Aggregation = "token-mean"
    """How per-token losses become one number; denominators are those of the whole optimizer step."""
    seq_denominator: Literal["effective", "all"] = "effective"
    """Sequences that the seq-mean modes divide by: those with a trained token, or all."""
    norm_length: int | None = Field(None, gt=0)
    """Constant length of the `-norm` modes."""
    mask_truncated: bool = False
    """Overlong filtering: cut-off answers keep their place in the group statistics but get no loss."""
    dynamic_sampling: bool = False
    """Drop groups without signal and draw further prompts until the batch is full."""
    sampling_metric: Literal["accuracy", "value"] = "accuracy"
    """What must vary within a group."""
    sampling_criterion: Literal["std", "mean_range"] = "std"
    """std keeps groups whose metric varies; mean_range keeps groups with 0.01 < mean < 0.99."""
    max_tries: int = Field(10, ge=1)
    """Batches of prompts drawn for one step at the most."""

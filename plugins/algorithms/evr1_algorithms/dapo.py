"""DAPO (arXiv 2503.14476): GRPO with four changes.

1. Clip-higher: ratio in [1 - 0.2, 1 + 0.28] (section 3.1).
2. Dynamic sampling: groups that are all right or all wrong are replaced by further prompts (section 3.2, eq. 11).
3. Token-level loss: the mean over all tokens of the step (section 3.3; the paper's eq. 12 is per group).
4. Soft overlong punishment (section 3.4, eq. 13): `rewards.overlong`, off unless asked for; `mask_truncated` is the
   paper's overlong filtering.

No KL term. The advantage is GRPO's, on the shaped reward.
"""

from __future__ import annotations

from pydantic import Field

from evr1_algorithms import grpo


class Options(grpo.Options):
    """Options of DAPO."""

    clip_high: float = Field(0.28, ge=0)
    """The ratio is clipped above at 1 + clip_high."""
    dynamic_sampling: bool = True
    """Drop groups without signal and draw further prompts until the batch is full."""


advantage = grpo.advantage
loss = grpo.loss

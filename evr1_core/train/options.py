"""Options that every algorithm has. A plugin's options model extends this one and may set other defaults."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from evr1_core.config.models import Section

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-sum-norm"]

Estimator = Literal["k1", "abs", "k2", "k3", "k3_st"]

Correction = Literal["off", "token_truncate", "token_mask", "seq_truncate", "seq_mask", "seq_geo_mask"]


class AlgorithmOptions(Section):
    """What the training loop itself reads of an algorithm's options."""

    expects_trajectories: ClassVar[bool] = False
    """The algorithm is another one without offline trajectories: a run that gives none is told so."""

    aggregation: Aggregation = "token-mean"
    """How per-token losses become one number; denominators are those of the whole optimizer step."""
    seq_denominator: Literal["effective", "all"] = "effective"
    """Sequences that the seq-mean modes divide by: those with a trained token, or all."""
    norm_length: int | None = Field(default=None, gt=0)
    """Constant length of the `-norm` modes."""
    mask_truncated: bool = False
    """Overlong filtering: cut-off answers keep their place in the group statistics but get no loss."""
    dynamic_sampling: bool = False
    """Drop groups without signal and draw further prompts until the batch is full."""
    sampling_metric: Literal["accuracy", "value", "parts"] = "accuracy"
    """What must vary within a group; parts is any named part of the reward, for algorithms that normalise each by itself."""
    sampling_criterion: Literal["std", "mean_range"] = "std"
    """std keeps groups whose metric varies; mean_range keeps groups with 0.01 < mean < 0.99."""
    max_tries: int = Field(default=10, ge=1)
    """Batches of prompts drawn for one step at the most."""
    surplus: Literal["keep", "drop"] = "keep"
    """Groups with signal beyond the batch: the next step trains on them first, off-policy by one update; or they are dropped."""
    greedy_baseline: bool = False
    """Draw one greedy answer more per prompt, score it and give its value to the advantage; it is not trained on."""
    kl: Literal["off", "loss", "reward"] = "off"
    """Where a KL penalty to the frozen starting model goes; off loads no reference and computes nothing."""
    kl_coef: float = Field(default=1e-3, ge=0)
    """Weight of the KL penalty; with `kl_target` where it starts. 0 is off."""
    kl_estimator: Estimator | None = None
    """How KL is estimated from the tokens drawn; null is k3 in the loss and k1 in the reward."""
    kl_target: float | None = Field(default=None, gt=0)
    """KL per token that the coefficient is led to (it adapts); null keeps it fixed."""
    kl_horizon: int = Field(default=10_000, gt=0)
    """Answers over which the adaptive coefficient moves; larger is slower."""

    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus: the entropy of the trained tokens, aggregated as the loss is, is taken from the loss. 0 is off."""
    tis: Correction = "off"
    """Truncated importance sampling: weigh the loss of a token by pi_old / pi_rollout, bounded (`evr1_core.train.terms`)."""
    tis_max: float | None = Field(default=2.0, gt=0)
    """Upper bound of the weight, or of the ratio that is kept; null is none."""
    tis_min: float | None = Field(default=None, ge=0)
    """Lower bound; null is none."""

    @property
    def estimator(self) -> Estimator:
        return self.kl_estimator or ("k1" if self.kl == "reward" else "k3")

    @property
    def uses_reference(self) -> bool:
        return self.kl != "off" and self.kl_coef > 0

    @model_validator(mode="after")
    def _informative(self) -> AlgorithmOptions:
        if self.kl == "loss" and self.kl_estimator == "k1":
            raise ValueError("kl_estimator k1 has no gradient towards the reference when it is a loss: take k2, k3 or k3_st, or kl=reward")
        if self.tis_min is not None and self.tis_max is not None and self.tis_min > self.tis_max:
            raise ValueError("tis_min must not be above tis_max")
        return self

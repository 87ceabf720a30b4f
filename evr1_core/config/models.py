"""The configuration of a run. Class defaults are the recipe of EasyVideoR1 (arXiv 2604.16893), so the shortest
file is a good run.

Sections mirror the packages. Every model is frozen and refuses unknown keys; no validator changes a value.
`algorithm` and `rollout.options` also hold keys that belong to a plugin: they are checked against the plugin's own
model once the plugin is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from evr1_core.config.cluster import ClusterSection
from evr1_core.config.rewards import RewardSection
from evr1_core.config.section import Section
from evr1_core.types import Budget, ImageBudget, VideoBudget


class LoraSection(Section):
    """Low-rank adapters in place of whole weights: W x + scale B A x, with W frozen."""

    rank: int = Field(default=16, ge=1)
    """Rank of an adapter."""
    alpha: float = Field(default=32.0, gt=0)
    """The scale is alpha / rank."""
    rslora: bool = False
    """The scale is alpha / sqrt(rank) (arXiv 2312.03732)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the input of an adapter, in the update alone. Rollouts have none, so the policy that is updated differs from them."""
    targets: tuple[str, ...] = ("language",)
    """Where: parts of the family (their linear layers), `experts` (stacked weights of a mixture of experts), or regular expressions
    that match whole names of linear layers or stacked weights."""
    exclude: tuple[str, ...] = ()
    """What to leave out of `targets`, written in the same way."""


class ModelSection(Section):
    """The model that is trained."""

    path: str | None = None
    """A preset (`evr1 models list`), a local directory, or a repository id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Type of the weights in forward and backward; the optimizer keeps float32 copies."""
    chat: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the model's chat template, for example `{enable_thinking: false}`; what they mean is the template's matter."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = "auto"
    """Attention kernel; auto leaves the choice to evr1."""
    kernels: Literal["torch", "liger"] = "torch"
    """liger takes fused kernels for norms, gated MLPs and rotary positions; needs a CUDA GPU and the package liger-kernel."""
    compile: Literal["off", "blocks"] = "off"
    """blocks compiles the layers of vision tower and language model one by one with torch.compile, for the update alone."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass: less memory, more time, same gradient."""
    activation_offload: bool = False
    """Hold what the backward pass needs in host memory: less GPU memory, more time, same gradient. Goes with gradient_checkpointing."""
    weights_offload: bool = False
    """Hold the weights in host memory while an engine with weights of its own generates."""
    lora: LoraSection | None = None
    """Train adapters and leave the weights as they are; null trains the weights."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained, by the names the family gives: for example `vision`, `projector`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto is cuda where there is a GPU."""
    reference_device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the frozen reference of a KL penalty lives; auto is beside the policy."""
    reference_dtype: Literal["bfloat16", "float32"] | None = None
    """Type of the reference's weights; null is that of the policy."""


class DataSection(Section):
    """Rows and how they become prompts."""

    train: tuple[Path, ...] = ()
    """JSON, JSONL, Parquet or CSV files."""
    validate_on: tuple[Path, ...] = ()
    """Files scored every `evaluate.every` steps."""
    media_root: Path | None = None
    """Folder that relative media paths start from; None is the data file's own folder."""
    template: str | None = None
    """A jinja2 file, or the name of a shipped one, used for every problem type; None is one per problem type."""
    max_prompt_tokens: int = Field(default=20_000, gt=0)
    """Longest prompt, its media tokens counted."""
    overlong: Literal["exclude", "shrink", "error"] = "exclude"
    """What happens to a row whose prompt is longer than `max_prompt_tokens`: left out, its media made smaller until it fits, or the
    run stops. A prompt is never cut."""
    bad_rows: Literal["error", "exclude"] = "error"
    """What happens to a row that can't be read or whose media can't be decoded."""
    plan: bool = True
    """Find rows that are too long or whose media can't be used before the first step, from headers; off finds them when their turn
    comes."""
    shuffle: bool = True
    """A new order in every epoch, the same for the same `seed`; off keeps the order of the files."""
    limit: int | None = Field(default=None, gt=0)
    """Use only the first rows."""


class VideoBudgetSection(Section):
    """How much of a video the model sees; pixels are counted after resizing."""

    fps: float = Field(default=2.0, gt=0)
    """Frames taken per second of video, within `min_frames` and `max_frames`."""
    min_frames: int = Field(default=4, ge=1)
    """Fewest frames of one video; a video that has fewer gives all it has."""
    max_frames: int = Field(default=128, ge=1)
    """Most frames of one video."""
    frames: int | None = Field(default=None, ge=1)
    """So many frames of every video, in place of `fps`, `min_frames` and `max_frames`; a video that has fewer gives all it has."""
    min_pixels: int = Field(default=4_096, gt=0)
    """Per frame; a smaller frame is enlarged."""
    max_pixels: int = Field(default=262_144, gt=0)
    """Per frame; a larger frame is made smaller, its shape is kept."""
    total_pixels: int | None = Field(default=None, gt=0)
    """Over one video, one frame counted per temporal patch, as tokens are: with two frames a patch, half of all its pixels."""

    @model_validator(mode="after")
    def _ordered(self) -> VideoBudgetSection:
        if self.min_frames > self.max_frames:
            raise ValueError(f"min_frames {self.min_frames} is above max_frames {self.max_frames}: lower the one or raise the other")
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}: lower the one or raise the other")
        return self


class ImageBudgetSection(Section):
    """Pixels of one image after resizing."""

    min_pixels: int = Field(default=4_096, gt=0)
    """A smaller image is enlarged."""
    max_pixels: int = Field(default=1_048_576, gt=0)
    """A larger image is made smaller, its shape is kept."""

    @model_validator(mode="after")
    def _ordered(self) -> ImageBudgetSection:
        if self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels {self.min_pixels} is above max_pixels {self.max_pixels}: lower the one or raise the other")
        return self


class BudgetSection(Section):
    """What one phase may spend on each modality."""

    video: VideoBudgetSection = VideoBudgetSection()
    """One video."""
    image: ImageBudgetSection = ImageBudgetSection()
    """One image."""

    def budget(self) -> Budget:
        return Budget(video=VideoBudget(**self.video.model_dump()), image=ImageBudget(**self.image.model_dump()))


class MediaSection(Section):
    """Decoding and the frame cache."""

    train: BudgetSection = BudgetSection()
    """Training prompts."""
    evaluate: BudgetSection = BudgetSection()
    """Validation and `evr1 eval`."""
    cache_dir: Path | None = None
    """Folder of the frame cache; None is `$EVR1_CACHE_DIR/frames` or `~/.cache/evr1/frames`."""
    mode: Literal["auto", "cache-only", "decode-only"] = "auto"
    """auto: from the cache, else decode and store."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds one decode may take before it is killed and named."""
    tolerate: float = Field(default=0.0, ge=0, lt=1)
    """Share of the frames of one video that may be undecodable: they are left out, counted, and the clock stays true. 0 is strict."""
    codec: Literal["raw", "jpeg"] = "raw"
    """How frames are stored: raw bytes, or JPEG for less disk, more time and a small loss (docs/cache.md gives the figures)."""


class RolloutSection(Section):
    """How answers are drawn."""

    engine: str = "auto"
    """Name of an engine plugin; auto takes the best one installed for the device."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the engine plugin."""
    placement: Literal["colocated", "separate"] = "colocated"
    """On the `ray` backend: engines in the workers of the policy, taking turns on their GPUs; or in workers of their own."""
    workers: int | None = Field(default=None, ge=1)
    """Workers of the engines when they are separate, one GPU each."""
    n: int = Field(default=8, ge=1)
    """Answers per prompt."""
    temperature: float = Field(default=1.0, gt=0, le=2)
    """Sampling temperature; log-probabilities are those at this temperature."""
    max_tokens: int = Field(default=4_096, ge=1)
    """Longest answer; a longer one is cut off and marked so."""


class GuidanceSection(Section):
    """Mix-policy: an offline trajectory of the row takes the place of one of the policy's answers."""

    mode: Literal["off", "always", "below"] = "off"
    """always draws n - 1 answers and adds one trajectory; below draws n, and where their mean accuracy is below `threshold` a trajectory
    takes the place of the last one."""
    threshold: float = Field(default=0.5, gt=0, le=1)
    """Accuracy of the policy's own answers under which mode `below` adds a trajectory."""


class AlgorithmSection(Section):
    """The algorithm by name; every further key is an option of that algorithm, for example `clip_high`."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    name: str | None = None
    """`evr1 algorithms list` shows them."""
    advantage: str | None = None
    """Take the advantage of another algorithm."""
    loss: str | None = None
    """Take the token loss of another algorithm."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class TrainSection(Section):
    """Optimisation and the length of the run."""

    steps: int | None = Field(default=None, ge=1)
    """Number of steps; None goes by `epochs`."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the data."""
    batch_size: int = Field(default=256, ge=1)
    """Prompts per step."""
    mini_batches: int = Field(default=1, ge=1)
    """Optimizer updates per step."""
    micro_batch_tokens: int = Field(default=24_096, ge=1)
    """Prompt and answer tokens per forward pass; a longer single row goes alone. Changes memory, never the gradient."""
    packing: bool = True
    """Pack rows without padding; off pads them. Same gradient."""
    optimizer: Literal["adamw", "adamw_fused", "adamw_8bit"] = "adamw"
    """adamw_fused is one kernel where torch has it; adamw_8bit holds the moments in 8 bits (arXiv 2110.02861; needs bitsandbytes)."""
    optimizer_offload: Literal["off", "rollout", "always"] = "off"
    """Where the optimizer's float32 copies and moments are: with the weights; in host memory while answers are generated; or always in
    host memory, where the update is made then."""
    lr: float = Field(default=1e-6, ge=0)
    """Learning rate after the warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of AdamW."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient of an optimizer update is scaled down to this norm."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises from 0."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Course of the learning rate after the warm-up."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The end of a falling schedule, as a share of `lr`."""
    save_every: int = Field(default=20, ge=0)
    """Steps between checkpoints; 0 saves only the last."""
    keep: int = Field(default=2, ge=1)
    """Checkpoints kept."""
    save: Literal["background", "wait"] = "background"
    """background copies the state and writes it while training goes on; wait writes it first."""
    best: str | None = None
    """A validation metric, for example validate/accuracy: the checkpoint with its best value is kept beside the last ones."""
    best_is: Literal["max", "min"] = "max"
    """Whether a larger or a smaller value of `best` is better."""
    async_steps: int = Field(default=0, ge=0)
    """Steps that rollouts may be behind the weights: answers for the next steps are drawn during the update. Needs
    rollout.placement=separate; 0 is synchronous."""
    resume: str = "auto"
    """auto goes on from the last complete checkpoint of the run; never starts anew; else the path of a checkpoint."""
    max_mismatch: float | None = Field(default=None, gt=0)
    """Largest mean absolute difference of rollout and trainer log-probabilities on the first batch; above it the run
    stops. Null is 0.001 in float32 and 0.1 in bfloat16."""


class EvaluateSection(Section):
    """Scoring on `data.validate_on` during training, and sampling of `evr1 eval`."""

    every: int = Field(default=0, ge=0)
    """Steps between validations; 0 is never."""
    first: bool = False
    """Validate before the first step too."""
    n: int = Field(default=1, ge=1)
    """Answers per prompt."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0 is greedy."""
    max_tokens: int = Field(default=4_096, ge=1)
    """Longest answer."""
    engines: int = Field(default=1, ge=1)
    """Engines side by side for `evr1 eval`, each with its own GPUs; more than one are placed by Ray."""
    media_gib: float = Field(default=4.0, gt=0)
    """Frames and model inputs that are loaded ahead or in use at a time, in GiB."""
    deadline: float = Field(default=1800.0, gt=0)
    """Seconds that the engine may take over one question; later it is a failed one."""


class RecordSection(Section):
    """What a run writes beside its checkpoints."""

    trackers: tuple[str, ...] = ()
    """Tracker plugins that get the metrics too, for example an experiment service."""
    project: str = "evr1"
    """Name under which trackers file the run."""
    rollouts: bool = True
    """Write every rollout to rollouts.jsonl."""


class RunConfig(Section):
    """One training run."""

    name: str = "run"
    """The run's folder below `output`."""
    output: Path = Path("runs")
    """Folder of the runs."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Data order and sampling follow from it."""
    model: ModelSection = ModelSection()
    """The model that is trained."""
    data: DataSection = DataSection()
    """Rows and how they become prompts."""
    media: MediaSection = MediaSection()
    """Decoding, budgets and the frame cache."""
    rollout: RolloutSection = RolloutSection()
    """How answers are drawn."""
    guidance: GuidanceSection = GuidanceSection()
    """Mix-policy: offline trajectories in groups."""
    rewards: RewardSection = RewardSection()
    """How answers are scored."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """The algorithm and its options."""
    train: TrainSection = TrainSection()
    """Optimisation and the length of the run."""
    evaluate: EvaluateSection = EvaluateSection()
    """Validation during training."""
    record: RecordSection = RecordSection()
    """What a run writes."""
    cluster: ClusterSection = ClusterSection()
    """Where the work runs."""

    @model_validator(mode="after")
    def _below_output(self) -> RunConfig:
        if not self.name.strip() or Path(self.name).is_absolute() or ".." in Path(self.name).parts or self.name == ".":
            raise ValueError(f"name {self.name!r} is no folder below output: give a plain name, and the place as `output`")
        return self

    @model_validator(mode="after")
    def _own_answers(self) -> RunConfig:
        if self.guidance.mode != "off" and self.rollout.n < 2:
            raise ValueError(f"guidance.mode {self.guidance.mode} needs an answer of the policy beside the trajectory: rollout.n=2 or more")
        return self

    @property
    def directory(self) -> Path:
        return self.output / self.name

"""What the Qwen-VL families have in common: chat turns, placeholders, one vision pass, rotary positions in three axes.

A family is a subclass that says how a video is announced in the prompt, which positions its tokens have, and where its
parts lie in the model.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from evr1_core.errors import RequestError
from evr1_core.types import Clip, PatchFactors
from evr1_models.attention import PACKED, linear_patches, registered
from evr1_models.sequence import FrameShares, share_sequence

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evr1_core.media.plan import Plan
    from evr1_core.policy.sequence import SequenceGroup

ASSISTANT = "<|im_start|>assistant\n"
IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
KINDS = (("image", "pixel_values", "image_grid_thw"), ("video", "pixel_values_videos", "video_grid_thw"))
"""Kind of medium, and the names of its patches and grid among the features."""

OWN_ARGUMENTS = frozenset({"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"})
"""Arguments of the chat template, and of the call that renders it, that can't be chosen."""


class Block(NamedTuple):
    """Vision tokens that stand in a row: an image, a video, or one temporal patch of a video."""

    frames: int
    height: int
    width: int
    """Sides in tokens, after merging."""
    step: float = 1.0
    """Distance of two temporal patches on the time axis."""


class QwenVL:
    """Base of the families; follows `evr1_core.policy.adapter.ModelAdapter`."""

    model_class: ClassVar[str]
    """Name of the transformers class, for example `Qwen2VLForConditionalGeneration`."""

    def __init__(self, directory: Path, chat: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Raises RequestError for an argument in `chat` that the chat template doesn't read."""
        from transformers import AutoConfig, AutoProcessor

        self.directory = Path(directory)
        self.config = AutoConfig.from_pretrained(self.directory)
        self.processor = AutoProcessor.from_pretrained(self.directory)
        self.tokenizer = self.processor.tokenizer
        self.chat: Mapping[str, Any] = self._read_by_template(chat)
        vision = self.config.vision_config
        self.merge_size: int = vision.spatial_merge_size
        self.factors = PatchFactors(pixels=vision.patch_size * self.merge_size, frames=vision.temporal_patch_size)
        self.image_token_id: int = self.config.image_token_id
        self.video_token_id: int = self.config.video_token_id
        media = {self.image_token_id, self.video_token_id, self.config.vision_start_token_id, self.config.vision_end_token_id}
        self.forbidden_token_ids = tuple(sorted(media))
        self.stop_token_ids = self._stop_tokens()
        added = self.tokenizer.added_tokens_decoder.values()
        self.special_texts = frozenset(token.content for token in added if token.special)

    def _stop_tokens(self) -> tuple[int, ...]:
        from transformers import GenerationConfig

        # Engines end at the tokenizer's own end token too, which for a base model is not the end of a turn.
        stops = [self.tokenizer.convert_tokens_to_ids("<|im_end|>"), self.tokenizer.eos_token_id]
        if (self.directory / "generation_config.json").is_file():
            declared = GenerationConfig.from_pretrained(self.directory).eos_token_id
            stops += declared if isinstance(declared, list) else [declared] if declared is not None else []
        return tuple(dict.fromkeys(stop for stop in stops if stop is not None))

    def _read_by_template(self, chat: Mapping[str, Any]) -> dict[str, Any]:
        template = str(self.processor.chat_template)
        for name in chat:
            if name in OWN_ARGUMENTS:
                raise RequestError(f"model.chat.{name}: evr1 sets it itself; leave it out")
            # transformers would drop it with a warning. A name in the template may still be without effect.
            if not re.search(rf"\b{re.escape(name)}\b", template):
                raise RequestError(
                    f"model.chat.{name}: the chat template of {self.directory} never reads it; its variables stand in that file"
                )
        return dict(chat)

    # What a family says ----------------------------------------------------------------------------------------

    def video_metadata(self, clip: Clip) -> dict[str, Any]:
        """The clip's clock as the family's processor reads it."""
        raise NotImplementedError

    def _video_tokens(self, plan: Plan) -> int:
        """Tokens that take the place of one `<|video_pad|>`."""
        raise NotImplementedError

    def _features(self, encoded: Mapping[str, Any], clips: Sequence[Clip]) -> dict[str, Tensor]:
        """Model inputs beside the ids; families add what they need."""
        names = [name for _, pixels, grid in KINDS for name in (pixels, grid)]
        return {name: encoded[name] for name in names if name in encoded}

    def _video_blocks(self, features: Mapping[str, Tensor]) -> Iterator[Block]:
        """The runs of video tokens of a row, in order."""
        raise NotImplementedError

    # Messages to ids -------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        text = self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True, **self.chat)
        return text, text[text.rindex(ASSISTANT) + len(ASSISTANT) :]

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Tensor]]:
        kinds = [clip.kind for clip in clips]
        for kind, mark in (("image", IMAGE), ("video", VIDEO)):
            if text.count(mark) != kinds.count(kind):
                raise ValueError(f"{text.count(mark)} {kind} placeholders in the prompt, {kinds.count(kind)} {kind}s given")
        if not clips:
            return tuple(self.tokenize(text)), {}
        # Frames come resized to the budget and sampled by time: both must not happen a second time. Patches stay bytes, a
        # quarter of the memory, until a forward pass needs them.
        final = {"do_resize": False, "do_rescale": False, "do_normalize": False}
        encoded = self.processor(text=[text], return_tensors="pt", **final, **self._media(clips))
        return tuple(encoded["input_ids"][0].tolist()), self._features(encoded, clips)

    def _media(self, clips: Sequence[Clip]) -> dict[str, Any]:
        """Frames and clocks as arguments of the processor."""
        images = [torch.from_numpy(clip.frames[0]) for clip in clips if clip.kind == "image"]
        videos = [clip for clip in clips if clip.kind == "video"]
        media: dict[str, Any] = {}
        if images:
            media["images"] = images
        if videos:
            media["videos"] = [torch.from_numpy(clip.frames) for clip in videos]
            media["videos_kwargs"] = {
                "video_metadata": [self.video_metadata(clip) for clip in videos],
                "do_sample_frames": False,
                "cap_pixels_per_frame": False,
            }
        return media

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int:
        # Control tokens end a word for the tokenizer, so the pieces between them add up.
        total = len(self.tokenize(text.replace(IMAGE, "").replace(VIDEO, "")))
        return total + sum(self._cells(plan) if plan.kind == "image" else self._video_tokens(plan) for plan in plans)

    def _cells(self, plan: Plan) -> int:
        """Tokens of one temporal patch."""
        return (plan.height // self.factors.pixels) * (plan.width // self.factors.pixels)

    def tokenize(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    # Ids to positions and features -----------------------------------------------------------------------------

    def position_ids(self, token_ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
        images = (self._block(grid.tolist()) for grid in features.get("image_grid_thw", ()))
        blocks = {self.image_token_id: images, self.video_token_id: self._video_blocks(features)}
        pieces: list[Tensor] = []
        position = 0
        # Vision tokens stand between start and end tokens, so one run of them is one block.
        runs = torch.unique_consecutive(torch.tensor(token_ids), return_counts=True)
        for value, count in zip(*(tensor.tolist() for tensor in runs), strict=True):
            if value in blocks:
                piece = block_positions(next(blocks[value], Block(0, 0, 0)), count) + position
            else:
                piece = torch.arange(position, position + count).expand(3, -1)
            pieces.append(piece)
            position = int(piece.max()) + 1
        left = sum(1 for kind in blocks.values() for _ in kind)
        if left:
            raise ValueError(f"vision features of {left} media without a token in the row")
        return torch.cat(pieces, dim=1)

    def _block(self, grid: Sequence[int], step: float = 1.0) -> Block:
        return Block(grid[0], grid[1] // self.merge_size, grid[2] // self.merge_size, step)

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
        distinct = {id(row): row for row in rows if row}
        parts = [((key, kind), row[pixels], row[grid]) for key, row in distinct.items() for kind, pixels, grid in KINDS if pixels in row]
        if not parts:
            return {"inputs_embeds": self._with_dummy(model, input_ids)} if always_vision else {"input_ids": input_ids}
        grids = [grid for _, _, grid in parts]
        pixels = [(pixels, kind) for (_, kind), pixels, _ in parts]
        if sequence is None:
            levels = self._see(model, self._patches(pixels, input_ids.device), torch.cat(grids).to(input_ids.device))
        else:
            levels = self._see_shared(model, pixels, torch.cat(grids), sequence, input_ids.device)
        sizes = [int(grid.prod(dim=-1).sum()) // self.merge_size**2 for grid in grids]
        found = {key: list(pieces) for (key, _, _), *pieces in zip(parts, *(level.split(sizes) for level in levels), strict=True)}
        outputs: dict[str, Any] = {}
        for kind, pixels, _ in KINDS:
            wanted = [found[id(row), kind] for row in rows if pixels in row]
            if wanted:
                merged, *deeper = (list(level) for level in zip(*wanted, strict=True))
                outputs[kind] = SimpleNamespace(pooler_output=merged, deepstack_features=deeper)
        return {"input_ids": input_ids, "mm_encoder_outputs": outputs}

    def _see(self, model: PreTrainedModel, patches: Tensor, grids: Tensor) -> list[Tensor]:
        """One pass of the vision tower -> merged features [N, D] of its last level, and of deeper ones where the family has them."""
        visual: Any = model.get_submodule("model.visual")
        output = visual(patches.to(visual.dtype), grid_thw=grids, return_dict=True)
        return [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]

    def _see_shared(
        self, model: PreTrainedModel, pixels: Sequence[tuple[Tensor, str]], grids: Tensor, group: SequenceGroup, device: torch.device
    ) -> list[Tensor]:
        """`_see` of all patches by ranks that have the same ones: each sees its share of the frames."""
        shares = FrameShares(grids, group.size)
        first, last = shares.patches(group.rank)
        starts = torch.tensor([0, *[len(one) for one, _ in pixels]]).cumsum(0).tolist()
        own = [(one[max(first - start, 0) : max(last - start, 0)], kind) for (one, kind), start in zip(pixels, starts, strict=False)]
        counts = [count // self.merge_size**2 for count in shares.counts]
        if first < last:
            levels = self._see(model, self._patches(own, device), shares.grids(group.rank).to(device))
        else:
            levels = [level[:0] for level in self._see(model, *self._dummy(device))]
        return list(group.gather(torch.cat(levels, dim=1), counts).split([level.shape[1] for level in levels], dim=1))

    def _patches(self, pixels: Sequence[tuple[Tensor, str]], device: torch.device) -> Tensor:
        """Patches of bytes with the kinds of their media -> what the tower takes."""
        return torch.cat([self._normalised(one.to(device), kind) for one, kind in pixels if len(one)])

    def _with_dummy(self, model: PreTrainedModel, input_ids: Tensor) -> Tensor:
        """Embedded text plus 0 times the features of the smallest picture: every value stays, and every gradient exists and is 0."""
        levels = self._see(model, *self._dummy(input_ids.device))
        embedded = model.get_input_embeddings()(input_ids)
        return embedded + 0.0 * sum(level.sum() for level in levels).to(embedded.dtype)  # type: ignore[union-attr]

    def _dummy(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Patches and grid of the smallest picture."""
        side = self.merge_size
        vision = self.config.vision_config
        channels = getattr(vision, "in_channels", 3) * vision.temporal_patch_size * vision.patch_size**2
        return torch.zeros(side * side, channels, device=device), torch.tensor([[1, side, side]], device=device)

    def _normalised(self, patches: Tensor, kind: str) -> Tensor:
        return normalised(patches, self.processor.image_processor if kind == "image" else self.processor.video_processor)

    # Weights ---------------------------------------------------------------------------------------------------

    def load_model(self, dtype: torch.dtype, attention: str = "auto", device: str = "cpu") -> PreTrainedModel:
        import transformers
        from transformers.utils import logging

        if not sys.stderr.isatty():
            logging.disable_progress_bar()  # a bar in a log file is noise
        implementation = registered(choose_attention(attention, device, dtype))
        model = getattr(transformers, self.model_class).from_pretrained(
            self.directory, dtype=dtype, attn_implementation=implementation, device_map={"": device}
        )
        return self._patched(model)

    def empty_model(self, dtype: torch.dtype, attention: str = "auto", device: str = "cpu") -> PreTrainedModel:
        import transformers

        implementation = registered(choose_attention(attention, device, dtype))
        with torch.device("meta"):
            # A copy: type and attention are written into the configuration.
            model = getattr(transformers, self.model_class)._from_config(
                copy.deepcopy(self.config), dtype=dtype, attn_implementation=implementation
            )
        return self._patched(model)

    def _patched(self, model: PreTrainedModel) -> PreTrainedModel:
        """What a family changes in modules of transformers, whether they have their weights or not."""
        linear_patches(model.get_submodule("model.visual"))
        return model

    def parts(self, model: PreTrainedModel) -> dict[str, list[nn.Module]]:
        visual = model.get_submodule("model.visual")
        found = dict(visual.named_children())
        projector = [found[name] for name in ("merger", "deepstack_merger_list") if name in found]
        tower = [module for module in found.values() if all(module is not one for one in projector)]
        parts = {"vision": tower, "projector": projector, "language": [model.get_submodule("model.language_model")]}
        single = {"deepstack": "deepstack_merger_list", "positions": "pos_embed"}
        return parts | {part: [found[name]] for part, name in single.items() if name in found}

    def blocks(self, model: PreTrainedModel) -> list[nn.Module]:
        names = ("model.visual.blocks", "model.language_model.layers")
        return [block for name in names for block in model.get_submodule(name).children()]

    def sequence_parallel(self, model: PreTrainedModel, size: int) -> None:
        share_sequence(model.get_submodule("model.language_model"), size, PACKED)

    def engine_weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """Tied weights under both names: an engine that loads layer by layer fills each layer for itself."""
        yield from model.state_dict().items()


def block_positions(block: Block, count: int) -> Tensor:
    """Positions [3, T * H * W] of a block from (0, 0, 0) on. Raises ValueError when it hasn't `count` tokens."""
    if block.frames * block.height * block.width != count:
        raise ValueError(f"{count} media tokens in a row, but {block.frames} x {block.height} x {block.width} features for them")
    # In float64, as engines do it: half a unit in the last place of float32 decides on which side of a whole number a time falls.
    times = (torch.arange(block.frames, dtype=torch.float64) * block.step).long()
    grid = torch.meshgrid(times, torch.arange(block.height), torch.arange(block.width), indexing="ij")
    return torch.stack(grid).reshape(3, -1)


def normalised(patches: Tensor, processor: Any) -> Tensor:
    """Patches of bytes [N, C * T * P * P], channels first -> float32, rescaled and normalised as the processor itself does it."""
    scale = processor.rescale_factor
    mean, std = (
        torch.tensor(values).mul(1.0 / scale).repeat_interleave(patches.shape[1] // len(values)).to(patches.device)
        for values in (processor.image_mean, processor.image_std)
    )
    return patches.float().sub_(mean).div_(std)


def choose_attention(attention: str, device: str, dtype: torch.dtype) -> str:
    """`auto` is FlashAttention 2 on a GPU where it is installed, else PyTorch's own attention, which alone serves float32."""
    if attention in ("sdpa", "eager"):
        return attention
    from importlib.util import find_spec

    module, package = ("flash_attn_interface", "flash-attn-3") if attention == "flash_attention_3" else ("flash_attn", "flash-attn")
    usable = device.startswith("cuda") and dtype != torch.float32 and find_spec(module) is not None
    if attention == "auto":
        return "flash_attention_2" if usable else "sdpa"
    if not usable:
        raise RequestError(f"model.attention = {attention}: needs a CUDA GPU, bfloat16 and the package {package}; take auto or sdpa")
    return attention

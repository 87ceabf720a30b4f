"""Qwen3-VL (arXiv 2511.21631): every two frames become one temporal patch, announced by a written timestamp.

A video's `<|video_pad|>` becomes a run of `<1.5 seconds><|vision_start|>..pads..<|vision_end|>` blocks, one per
temporal patch. Checked against transformers 5.19 (`modeling_qwen3_vl.py`, `processing_qwen3_vl.py`) by the contract tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from evr1_core.errors import RequestError
from evr1_core.types import Clip, PatchFactors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evr1_core.media.plan import Plan

ASSISTANT = "<|im_start|>assistant\n"


class Qwen3VL:
    """Adapter of `model_type: qwen3_vl`."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoConfig, AutoProcessor

        self.directory = Path(directory)
        self.config = AutoConfig.from_pretrained(self.directory)
        self.processor = AutoProcessor.from_pretrained(self.directory)
        self.tokenizer = self.processor.tokenizer
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

    # Messages to ids -------------------------------------------------------------------------------------------

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        text = self.processor.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return text, text[text.rindex(ASSISTANT) + len(ASSISTANT) :]

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Tensor]]:
        kinds = [clip.kind for clip in clips]
        marks = {"image": text.count("<|image_pad|>"), "video": text.count("<|video_pad|>")}
        for kind, count in marks.items():
            if count != kinds.count(kind):
                raise ValueError(f"{count} {kind} placeholders in the prompt, {kinds.count(kind)} {kind}s given")
        if not clips:
            return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]), {}
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
        # Frames come resized to the budget and sampled by time: both must not happen a second time. Patches stay bytes, a
        # quarter of the memory, until a forward pass needs them.
        final = {"do_resize": False, "do_rescale": False, "do_normalize": False}
        encoded = self.processor(text=[text], return_tensors="pt", **final, **media)
        names = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
        features = {name: encoded[name] for name in names if name in encoded}
        return tuple(encoded["input_ids"][0].tolist()), features

    def video_metadata(self, clip: Clip) -> dict[str, Any]:
        height, width = clip.size
        indices, fps = clock(clip)
        total = clip.source_frames if fps == clip.source_fps else max(round(clip.duration * fps), indices[-1] + 1)
        return {
            "fps": fps,
            "frames_indices": indices,
            "total_num_frames": total,
            "duration": clip.duration,
            "height": height,
            "width": width,
            "video_backend": clip.decoder,
        }

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int:
        # Control tokens end a word for the tokenizer, so the pieces between them add up.
        total = len(self.tokenize(text.replace("<|image_pad|>", "").replace("<|video_pad|>", "")))
        for plan in plans:
            cells = (plan.height // self.factors.pixels) * (plan.width // self.factors.pixels)
            if plan.kind == "image":
                total += cells
            else:
                total += sum(len(self.tokenize(stamp)) + cells + 2 for stamp in self._timestamps(*clock(plan)))
        return total

    def _timestamps(self, indices: Sequence[int], fps: float) -> list[str]:
        """`<1.5 seconds>` per temporal patch: the middle of its first and last frame."""
        step = self.factors.frames
        times = [index / fps for index in indices]
        padded = times + [times[-1]] * (-len(times) % step)
        return [f"<{(padded[i] + padded[i + step - 1]) / 2:.1f} seconds>" for i in range(0, len(padded), step)]

    def tokenize(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    # Ids to positions and features -----------------------------------------------------------------------------

    def position_ids(self, token_ids: Sequence[int], features: Mapping[str, Tensor]) -> Tensor:
        ids = torch.tensor(token_ids)
        grids = {
            self.image_token_id: [grid[1:].tolist() for grid in features.get("image_grid_thw", [])],
            # Each temporal patch stands alone behind its timestamp.
            self.video_token_id: [grid[1:].tolist() for grid in features.get("video_grid_thw", []) for _ in range(int(grid[0]))],
        }
        cursors = {token: iter(sizes) for token, sizes in grids.items()}
        pieces: list[Tensor] = []
        position = 0
        # Vision tokens stand between start and end tokens, so one run of them is one image or one temporal patch.
        for value, count in zip(*(tensor.tolist() for tensor in torch.unique_consecutive(ids, return_counts=True)), strict=True):
            if value not in cursors:
                pieces.append(torch.arange(position, position + count).expand(3, -1))
                position += count
                continue
            height, width = (side // self.merge_size for side in next(cursors[value]))
            if height * width != count:
                raise ValueError(f"{count} media tokens in a row, but {height} x {width} features for them")
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            pieces.append(torch.stack([torch.zeros_like(rows), rows, columns]).reshape(3, -1) + position)
            position += max(height, width)
        return torch.cat(pieces, dim=1)

    def merge(self, rows: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        names = sorted({name for row in rows for name in row})
        merged = {name: torch.cat([row[name] for row in rows if name in row]) for name in names}
        for name, processor in (("pixel_values", self.processor.image_processor), ("pixel_values_videos", self.processor.video_processor)):
            if name in merged:
                merged[name] = normalised(merged[name], processor)
        return merged

    # Weights ---------------------------------------------------------------------------------------------------

    def load_model(self, dtype: torch.dtype, attention: str = "auto", device: str = "cpu") -> PreTrainedModel:
        from transformers import Qwen3VLForConditionalGeneration
        from transformers.utils import logging

        if not sys.stderr.isatty():
            logging.disable_progress_bar()  # a bar in a log file is noise
        return Qwen3VLForConditionalGeneration.from_pretrained(
            self.directory, dtype=dtype, attn_implementation=choose_attention(attention, device, dtype), device_map={"": device}
        )

    def parts(self, model: PreTrainedModel) -> dict[str, list[nn.Module]]:
        visual = model.get_submodule("model.visual")
        projector = [visual.get_submodule("merger"), visual.get_submodule("deepstack_merger_list")]
        tower = [visual.get_submodule(name) for name in ("patch_embed", "pos_embed", "blocks")]
        return {"vision": tower, "projector": projector, "language": [model.get_submodule("model.language_model")]}

    def engine_weights(self, model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
        """Tied weights under both names: an engine that loads layer by layer fills each layer for itself."""
        yield from model.state_dict().items()


def clock(clip: Clip | Plan) -> tuple[list[int], float]:
    """(indices, rate): timestamps are written as `index / rate`.

    A constant-rate clip gives its own indices and rate; where that clock would be wrong (variable rate, odd start), the
    true times are given as indices in microseconds.
    """
    fps = clip.source_fps
    if fps > 0 and all(abs(index / fps - time) < 1e-3 for index, time in zip(clip.indices, clip.times, strict=True)):
        return list(clip.indices), fps
    return [round(time * 1_000_000) for time in clip.times], 1_000_000.0


def normalised(patches: Tensor, processor: Any) -> Tensor:
    """Patches of bytes [N, C * T * P * P], channels first -> float32, rescaled and normalised as the processor itself does it."""
    scale = processor.rescale_factor
    mean, std = (
        torch.tensor(values).mul(1.0 / scale).repeat_interleave(patches.shape[1] // len(values))
        for values in (processor.image_mean, processor.image_std)
    )
    return patches.float().sub_(mean).div_(std)


def choose_attention(attention: str, device: str, dtype: torch.dtype) -> str:
    """`auto` is FlashAttention 2 on a GPU where it is installed, else PyTorch's own attention, which alone serves float32."""
    if attention not in ("auto", "flash_attention_2"):
        return attention
    from importlib.util import find_spec

    usable = device.startswith("cuda") and dtype != torch.float32 and find_spec("flash_attn") is not None
    if attention != "auto" and not usable:
        raise RequestError("model.attention = flash_attention_2: needs a CUDA GPU, bfloat16 and the package flash-attn; take auto or sdpa")
    return "flash_attention_2" if usable else "sdpa"

"""The question set of the demo: encoded clips and pictures, and three splits that share no clip.

    directory/train.jsonl   choose.jsonl   report.jsonl   media/<id>.mp4|png

Settings are chosen on `choose`; `report` is what the report measures on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from evr1_demo.scenes import FPS, KINDS, Scene

SIZES = {"train": 768, "choose": 256, "report": 320}
"""Questions per split, the kinds in turn."""
LETTERS = "ABCD"


def make_question_set(directory: Path | str, seed: int = 0, sizes: Mapping[str, int] = SIZES) -> dict[str, Path]:
    """Write the splits; returns split -> JSONL file. The same seed and sizes give the same questions and pictures.

    A finished set is left as it is: `complete.json` holds the seed and the sizes that it was made with.
    """
    directory = Path(directory)
    files = {split: directory / f"{split}.jsonl" for split in sizes}
    made = {"seed": seed, "sizes": dict(sizes)}
    stamp = directory / "complete.json"
    if stamp.is_file() and json.loads(stamp.read_text(encoding="utf-8")) == made:
        return files
    (directory / "media").mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for split, size in sizes.items():
        drawn = enumerate(scenes(split, seed, size, seen))
        rows = [_write_row(directory, f"{split}-{index:04d}", scene, rng) for index, (scene, rng) in drawn]
        files[split].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    stamp.write_text(json.dumps(made) + "\n", encoding="utf-8")
    return files


def scenes(split: str, seed: int, size: int, seen: set[str] | None = None) -> Iterator[tuple[Scene, np.random.Generator]]:
    """`size` scenes of a split, the kinds in turn, each with the generator that goes on to shuffle its options.

    Frames whose hash is in `seen` are drawn anew, and every hash is added: splits that share `seen` share no clip.
    """
    seen = set() if seen is None else seen
    name = int.from_bytes(hashlib.sha256(split.encode()).digest()[:4], "big")
    kinds = list(KINDS.values())
    for index in range(size):
        rng = np.random.default_rng([seed, name, index])
        scene = kinds[index % len(kinds)](rng)
        while (digest := hashlib.sha256(scene.frames.tobytes()).hexdigest()) in seen:
            scene = kinds[index % len(kinds)](rng)
        seen.add(digest)
        yield scene, rng


def question(scene: Scene, rng: np.random.Generator) -> dict[str, Any]:
    """The row of a scene without id and medium: the options in a drawn order, the answer as a letter."""
    options = [scene.choices[i] for i in rng.permutation(len(scene.choices))]
    return {
        "problem": f"<{scene.medium}>{scene.question}",
        "options": options,
        "answer": LETTERS[options.index(scene.answer)],
        "problem_type": "multiple choice",
        "data_source": "demo",
        "kind": scene.kind,
    }


def _write_row(directory: Path, name: str, scene: Scene, rng: np.random.Generator) -> dict[str, Any]:
    if scene.medium == "image":
        path = f"media/{name}.png"
        write_image(directory / path, scene.frames[0])
    else:
        path = f"media/{name}.mp4"
        write_video(directory / path, scene.frames)
    return {"id": name, **question(scene, rng), f"{scene.medium}s": [path]}


def write_video(path: Path, frames: np.ndarray, fps: int = FPS) -> None:
    """H.264 in an mp4 file; frames uint8 [T, H, W, 3]. The same frames give the same bytes."""
    import av

    # Without x264's macroblock tree: with it some clips come out differently from run to run (its AVX-512 code, x264 165).
    options = {"crf": "16", "preset": "veryfast", "threads": "1", "x264-params": "mbtree=0"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def write_image(path: Path, pixels: np.ndarray) -> None:
    """PNG through the same library; pixels uint8 [H, W, 3]."""
    import av

    with av.open(str(path), "w", format="image2", options={"update": "1"}) as container:
        stream = container.add_stream("png", rate=1)
        stream.height, stream.width = pixels.shape[:2]
        stream.pix_fmt = "rgb24"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())

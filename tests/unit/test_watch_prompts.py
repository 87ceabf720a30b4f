"""The store of prepared prompts: what it returns, what it holds, and what it makes twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.cluster.prompts import TOKEN_BYTES, PreparedPrompts, memory
from evr1_core.types import Clip, Exclusion, Prompt, Sample


def clip(frames: np.ndarray, key: str = "") -> Clip:
    count = len(frames)
    return Clip(frames, (0.0,) * count, tuple(range(count)), 1.0, count, 1.0, 0, "test", "", key)


def sample(name: str) -> Sample:
    return Sample(name, "", "", "")


class Maker:
    """Builds prompts of given sizes in bytes and remembers for which samples it was asked."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes, self.calls = sizes, []

    def __call__(self, samples: Sequence[Sample]) -> tuple[list[Prompt], list[Exclusion]]:
        names = [one.id for one in samples]
        self.calls.append(names)
        made = [
            Prompt(one, (), "", (), features={"x": torch.zeros(self.sizes[one.id], dtype=torch.uint8)})
            for one in samples
            if one.id in self.sizes
        ]
        return made, [Exclusion(name, "too_long") for name in names if name not in self.sizes]


def test_prompts_come_in_order_and_are_made_once() -> None:
    maker = Maker({"a": 10, "b": 20})
    store = PreparedPrompts(maker, 100)
    found, excluded = store.take([sample("b"), sample("?"), sample("a"), sample("b")])
    assert [one and one.sample.id for one in found] == ["b", None, "a", "b"]
    assert found[0] is found[3] and [one.sample_id for one in excluded] == ["?"]
    assert maker.calls == [["b", "?", "a"]] and store.bytes == 30
    again, _ = store.take([sample("a"), sample("b")])
    assert again == [found[2], found[0]] and len(maker.calls) == 1 and store.rebuilt == 0
    store.release(["a", "nobody"])
    assert store.bytes == 20 and "a" not in store
    store.take([sample("a")])
    assert store.rebuilt == 0, "a released prompt is not one that was held too short"


def test_the_oldest_go_first_and_are_made_again() -> None:
    maker = Maker({name: 10 for name in "abcd"} | {"huge": 1000})
    store = PreparedPrompts(maker, 30)
    store.take([sample(name) for name in "abc"])
    store.take([sample("a")])
    store.take([sample("d")])
    assert [name in store for name in "abcd"] == [True, False, True, True]
    found, _ = store.take([sample("b"), sample("huge")])
    assert [one is not None for one in found] == [True, True] and store.rebuilt == 1
    assert "huge" not in store and store.bytes <= 30
    store.take([sample("huge")])
    assert store.rebuilt == 2


def test_shared_memory_counts_once(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4 * 4, dtype=np.uint8).reshape(2, 3, 4, 4)
    (tmp_path / "entry").write_bytes(pixels.tobytes())

    def mapped() -> np.ndarray:
        return np.memmap(tmp_path / "entry", np.uint8, "c").view(np.ndarray).reshape(pixels.shape)

    rows = torch.zeros(4, 8)
    prompts = [
        Prompt(sample("a"), (), "", (1, 2), (clip(mapped(), "k"), clip(pixels)), {"x": rows, "y": rows[1:]}),
        Prompt(sample("b"), (), "", (1,), (clip(mapped(), "k"), clip(pixels[:1])), {"x": rows[:2]}),
    ]
    store = PreparedPrompts(lambda samples: (prompts, []), 10_000)
    store.take([sample("a"), sample("b")])
    assert store.bytes == 2 * pixels.nbytes + rows.nbytes + 3 * TOKEN_BYTES
    store.release(["a"])
    assert store.bytes == 2 * pixels.nbytes + rows.nbytes + TOKEN_BYTES
    store.release(["b"])
    assert store.bytes == 0


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    limit=st.integers(0, 120),
    calls=st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 7), max_size=6)), max_size=12),
)
def test_never_more_than_the_limit_is_held(sizes: list[int], limit: int, calls: list[tuple[bool, list[int]]]) -> None:
    names = [str(number) for number in range(len(sizes))]
    store = PreparedPrompts(Maker(dict(zip(names, sizes, strict=True))), limit)
    for release, places in calls:
        asked = [names[place % len(names)] for place in places]
        if release:
            store.release(asked)
        else:
            found, excluded = store.take([sample(name) for name in asked])
            assert [one and one.sample.id for one in found] == asked and not excluded
        assert store.bytes <= limit
        assert store.bytes == sum(size for prompt in store._held.values() for size in memory(prompt).values())

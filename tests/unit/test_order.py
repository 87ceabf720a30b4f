"""The order of the data: every sample once per epoch, no sample twice in a batch, exact resume."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evr1_core.data.order import DataOrder, hash_of
from evr1_core.errors import RequestError
from evr1_core.types import MediaRef, Sample

sizes = st.integers(1, 12)


def samples(count: int) -> list[Sample]:
    return [Sample(str(at), f"question {at}", at, "numerical") for at in range(count)]


def ids(batches: list[list[Sample]]) -> list[list[str]]:
    return [[sample.id for sample in batch] for batch in batches]


@given(count=sizes, batch=sizes, epochs=st.integers(1, 4), shuffle=st.booleans(), seed=st.integers(0, 3))
def test_every_sample_once_per_epoch_and_never_twice_in_a_batch(count: int, batch: int, epochs: int, shuffle: bool, seed: int) -> None:
    order = DataOrder(samples(count), batch, seed, shuffle, epochs)
    drawn = ids(list(order))
    flat = [name for names in drawn for name in names]
    for epoch in range(epochs):
        assert sorted(flat[epoch * count : (epoch + 1) * count]) == sorted(map(str, range(count)))
    assert all(max(Counter(names).values()) == 1 for names in drawn)
    assert all(len(names) == min(batch, count) for names in drawn[:-1])
    assert len(drawn) == order.steps_total()
    with pytest.raises(StopIteration):
        order.next()


@given(count=sizes, batch=sizes, epochs=st.integers(1, 4) | st.none(), shuffle=st.booleans(), stop=st.integers(0, 20))
def test_a_resumed_order_goes_on_exactly(count: int, batch: int, epochs: int | None, shuffle: bool, stop: int) -> None:
    whole = ids(list(islice(DataOrder(samples(count), batch, 3, shuffle, epochs), 40)))
    first = DataOrder(samples(count), batch, 3, shuffle, epochs)
    before = ids(list(islice(first, stop)))
    resumed = DataOrder(samples(count), batch, 3, shuffle, epochs)
    resumed.load_state_dict(first.state_dict())
    assert (before + ids(list(islice(resumed, 40))))[:40] == whole


def test_without_shuffling_the_order_is_that_of_the_file() -> None:
    assert ids(list(DataOrder(samples(5), 2, shuffle=False, epochs=2))) == [["0", "1"], ["2", "3"], ["4", "0"], ["1", "2"], ["3", "4"]]


def test_epochs_differ_and_seeds_differ_and_the_same_seed_agrees() -> None:
    drawn = [ids(list(DataOrder(samples(50), 50, seed, epochs=2))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_another_run_is_not_resumed() -> None:
    state = DataOrder(samples(5), 2).state_dict()
    changed = [*samples(4), replace(samples(5)[4], answer=7)]
    with pytest.raises(RequestError, match="made with other data"):
        DataOrder(changed, 2).load_state_dict(state)
    for other in (DataOrder(samples(5), 3), DataOrder(samples(5), 2, seed=9), DataOrder(samples(5), 2, shuffle=False)):
        with pytest.raises(RequestError, match="the checkpoint was made with (batch_size|seed|shuffle)"):
            other.load_state_dict(state)
    more = DataOrder(samples(5), 2, epochs=7)
    more.load_state_dict(state)  # a longer run is the same run


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(RequestError, match="there are no samples"):
        DataOrder([], 2)


def test_the_hash_is_about_content_and_not_about_folders() -> None:
    one = Sample("a", "q", {"x": [1]}, "t", (MediaRef("/here/a.mp4", "video", 1.0),), options={"A": "x"})
    assert hash_of([one]) == hash_of([replace(one, media=(MediaRef("/there/a.mp4", "video", 1.0),))])
    for other in (replace(one, problem="r"), replace(one, options=("x",)), replace(one, media=(MediaRef("/here/a.mp4", "video"),))):
        assert hash_of([one]) != hash_of([other])

"""Work to ranks: nothing lost, equal cost, equal numbers of passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from evr1_core.cluster.balance import in_parts, spread
from evr1_core.policy.forward import Row, micro_batches
from evr1_core.train.messages import Share
from evr1_core.train.remote import deal
from evr1_core.train.shares import shares
from evr1_core.types import MediaRef, Prompt, Sample

MEDIA = 9
LIMIT = 64
COSTS = st.lists(st.integers(1, 1000), max_size=60)


@given(COSTS, st.integers(1, 8))
def test_spread_takes_every_item_once_and_comes_near_the_mean(costs: list[int], parts: int) -> None:
    found = spread(costs, parts)
    assert sorted(place for part in found for place in part) == list(range(len(costs))) and len(found) == parts
    loads = [sum(costs[place] for place in part) for part in found]
    assert max(loads) <= sum(costs) / parts + max(costs, default=0)


@given(COSTS, st.integers(1, 8), st.randoms())
def test_spread_moves_no_cost_that_may_stay_home(costs: list[int], parts: int, random) -> None:  # noqa: ANN001 - hypothesis' own type
    plain = spread(costs, parts)
    order = list(range(parts))
    random.shuffle(order)
    homes: list[int | None] = [None] * len(costs)
    for part, places in enumerate(plain):
        for place in places:
            homes[place] = order[part]
    found = spread(costs, parts, homes)
    assert all(homes[place] == part for part, places in enumerate(found) for place in places)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.data())
def test_runs_are_in_order_and_none_is_empty(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    found = in_parts(costs, parts)
    assert [place for part in found for place in part] == list(range(len(costs))) and len(found) == parts and all(found)


def rows_of(groups: Sequence[tuple[int, Sequence[int]]]) -> list[Row]:
    """(tokens of the prompt, tokens of each answer) of every group."""
    found: list[Row] = []
    for number, (prompt, answers) in enumerate(groups):
        made = Prompt(Sample(f"s{number}", "?", "A", "choice"), (), "?", (MEDIA,) * (prompt // 2) + (1,) * (prompt - prompt // 2))
        found += [Row(made, (2,) * length) for length in answers]
    return found


def micro(rows: Sequence[Row]) -> Iterator[list[int]]:
    return micro_batches(rows, LIMIT, packing=True)


def share_out(rows: Sequence[Row], parts: int, ranks: int, homes: dict[str, int] | None = None) -> list[Share]:
    return shares(rows, parts, ranks, micro, homes or {}, frozenset({MEDIA}), lambda row: row.prompt.sample.id)


@given(st.lists(st.tuples(st.integers(1, 50), st.lists(st.integers(1, 30), min_size=1, max_size=5)), min_size=1, max_size=12),
       st.integers(1, 4), st.integers(1, 5))  # fmt: skip
def test_every_row_runs_once_on_one_rank_and_all_ranks_make_equally_many_passes(groups, parts: int, ranks: int) -> None:  # noqa: ANN001
    rows = rows_of(groups)
    found = share_out(rows, parts, ranks)
    assert sorted(place for share in found for place in share.places) == list(range(len(rows)))
    assert len({tuple(len(part) for part in share.plan) for share in found}) == 1
    for share in found:
        assert [row for part in share.plan for one in part for row in one] == list(range(len(share.rows)))
        for place, (prompt, answer) in zip(share.places, share.rows, strict=True):
            assert share.prompts[prompt].sample is rows[place].prompt.sample and answer == rows[place].answer
        passes = [one for part in share.plan for one in part if len(one) > 1]
        assert all(sum(len(rows[share.places[row]]) for row in one) <= LIMIT for one in passes)


def test_answers_to_a_prompt_stay_together_and_where_the_prompt_is() -> None:
    rows = rows_of([(20, (5, 5, 5)), (20, (5, 5, 5)), (20, (5, 5, 5)), (20, (5, 5, 5))])
    found = share_out(rows, 1, 2, homes={"s0": 1, "s1": 0, "s2": 1, "s3": 0})
    assert [[asked.sample.id for asked in share.prompts] for share in found] == [["s1", "s3"], ["s0", "s2"]]
    assert {len(share.rows) for share in found} == {6}


def test_a_rank_without_rows_runs_dummies_and_spare_rows_take_their_place() -> None:
    lonely = share_out(rows_of([(10, (5,))]), 1, 3)
    assert [share.plan for share in lonely] == [(((0,),),), (((),),), (((),),)]
    long, short = share_out(rows_of([(60, (9, 9)), (5, (4, 4, 4))]), 1, 2)
    assert long.plan == (((0,), (1,)),) and short.plan == (((0,), (1, 2)),) or short.plan == (((0, 1), (2,)),)


def test_samples_are_dealt_by_kind_and_media_stay_together() -> None:
    def sample(name: str, *videos: str) -> Sample:
        media = tuple(MediaRef(path, "video") for path in videos)
        return Sample(name, "?", "A", "choice", media=media)

    samples = [sample("a", "x"), sample("b"), sample("c", "y"), sample("d"), sample("e", "x"), sample("f", "z")]
    found = deal(samples, 2)
    assert sorted(place for part in found for place in part) == list(range(6))
    assert {0, 4} <= set(found[0]) or {0, 4} <= set(found[1])
    assert all(1 <= sum(samples[place].data_type == "video" for place in part) <= 3 for part in found)

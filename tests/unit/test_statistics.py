"""Intervals and comparisons, against numbers that were published or can be counted by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evr1_core.evaluate.statistics import bootstrap, combined, compare, figure, nested_figure, sign_test, wilson


def test_wilson() -> None:
    # Newcombe, Stat. Med. 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29.
    for successes, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)
    assert wilson(20, 20)[1] == 1.0 and wilson(0, 0) == (0.0, 1.0)


def test_figure_of_right_and_wrong_answers_is_wilson() -> None:
    found = figure({"a": [1.0], "b": [0.0], "c": [1.0], "none": []})
    assert (found.value, found.n) == (pytest.approx(2 / 3), 3) and (found.low, found.high) == wilson(2, 3)
    assert figure({}).value is None and figure({"a": []}).n == 0


def test_answers_to_one_question_are_one_observation() -> None:
    few = figure({str(i): [float(i % 2)] * 8 for i in range(20)})
    assert few.n == 20 and few.value == 0.5
    # 20 independent observations span about 0.44 (in steps of 0.05); 160 would span 0.15.
    assert few.low is not None and few.high is not None and 0.35 <= few.high - few.low <= 0.55


def test_bootstrap_is_deterministic_and_about_right() -> None:
    values = [i / 99 for i in range(100)]
    low, high = bootstrap(values)
    assert bootstrap(values) == (low, high)
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(1 / 12 / 100), rel=0.1)


def test_sign_test() -> None:
    assert sign_test(0, 0) == 1.0 and sign_test(5, 5) == 1.0
    assert sign_test(9, 1) == pytest.approx(2 * 11 / 1024) and sign_test(1, 9) == sign_test(9, 1)
    assert 0 < sign_test(2000, 1800) < 0.01


def test_compare_pairs_by_question() -> None:
    first = {f"q{i}": 0.0 for i in range(10)} | {"only first": 1.0}
    second = {f"q{i}": float(i < 5) for i in range(10)} | {"only second": 0.0}
    found = compare(first, second)
    assert (found.n, found.better, found.worse, found.difference) == (10, 5, 0, 0.5)
    assert found.low > 0 and found.p == pytest.approx(2 / 32)
    with pytest.raises(ValueError, match="in common"):
        compare({"a": 1.0}, {"b": 1.0})


def test_a_mean_of_means_weighs_every_task_the_same() -> None:
    values = {"a": [1.0], "b": [0.0], "c": [1.0], "d": [1.0], "e": [0.0], "f": [1.0, 0.0]}
    paths = {
        "a": ("x", "x1"),
        "b": ("x", "x1"),
        "c": ("x", "x2"),
        "d": ("x", "x2"),
        "e": ("y", "y1"),
        "f": ("y", "y1"),
    }
    found = nested_figure(values, paths)
    # x is the mean of 1/2 and 1, y the mean of 0 and 1/2; every level weighs its members the same.
    assert found.value == pytest.approx((0.75 + 0.25) / 2) and found.n == 6
    assert found.low is not None and found.high is not None and found.low <= found.value <= found.high
    flat = nested_figure(values, {name: () for name in values}, {name: "one video" for name in values})
    assert flat.value == pytest.approx(3.5 / 6) and flat.low == flat.high == flat.value
    assert nested_figure({}, {}).value is None


def test_a_number_made_of_two_means() -> None:
    def gain(means: np.ndarray) -> np.ndarray:
        return (means[..., 1] - means[..., 0]) / (1 - means[..., 0])

    before = {f"{i}-before": float(i < 50) for i in range(100)}
    after = {f"{i}-after": float(i < 70) for i in range(100)}
    videos = {name: name.split("-")[0] for name in (*before, *after)}
    paired, apart = combined([before, after], gain, videos), combined([before, after], gain)
    assert paired.value == apart.value == pytest.approx(0.4) and paired.n == 200
    # The same video is drawn for both means, so that the gain varies less than with questions drawn apart.
    assert 0 < paired.high - paired.low < apart.high - apart.low  # type: ignore[operator]
    assert combined([before, {}], gain).value is None and combined([], gain).n == 0


def test_questions_of_one_video_widen_the_interval() -> None:
    values = {f"{video}-{number}": [float(video % 2)] for video in range(20) for number in range(10)}
    alone = figure(values)
    together = figure(values, {name: name.split("-")[0] for name in values})
    assert alone.value == together.value == 0.5
    assert together.high - together.low > 2 * (alone.high - alone.low)  # type: ignore[operator]

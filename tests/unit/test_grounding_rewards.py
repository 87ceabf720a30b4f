"""Grounding rewards: spans, boxes and tracks in the forms that models write, and what no form may earn."""

from __future__ import annotations

import itertools
import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evr1_core.config.models import RewardSection
from evr1_core.data.prompts import render, template_for
from evr1_core.errors import RequestError
from evr1_core.scoring.json_answer import JsonText, number, strict_json
from evr1_core.scoring.score import Scorer
from evr1_core.types import Sample, Score
from evr1_rewards.boxes import iou
from evr1_rewards.spans import set_iou
from evr1_rewards.spatial_grounding import matched_iou

SCORER = Scorer(RewardSection())
TIME, BOXES, TUBE, TRACK = "temporal-grounding", "spatial-grounding", "stvg", "tracking"
BOX = [10, 20, 30, 40]
TRACKED = {str(second): BOX for second in range(3, 7)}
GOLD: dict[str, Any] = {TIME: [12, 17], BOXES: BOX, TUBE: {"time": [3, 6], "boxes": TRACKED}, TRACK: {"boxes": TRACKED}}
STRICT = {
    TIME: '{"time": [12, 17]}',
    BOXES: '{"boxes": [10, 20, 30, 40]}',
    TUBE: json.dumps({"time": [3, 6], "boxes": TRACKED}),
    TRACK: json.dumps({"boxes": TRACKED}),
}


def score(problem_type: str, content: str | None, gold: Any = ..., scoring: dict[str, Any] | None = None, **row: Any) -> Score:
    """`content` stands in an answer block."""
    return whole(problem_type, content and f"<answer>{content}</answer>", gold, scoring, **row)


def whole(problem_type: str, response: str | None, gold: Any = ..., scoring: dict[str, Any] | None = None, **row: Any) -> Score:
    gold = GOLD[problem_type] if gold is ... else gold
    return SCORER.score(Sample(id="row-1", problem="", answer=gold, problem_type=problem_type, scoring=scoring or {}, extra=row), response)


def outcome(found: Score) -> float | str | None:
    return found.accuracy if found.status == "scored" else found.reason


SPANS = [
    "12-17", "12 – 17 s", "from 12s to 17s.", "12, 17", "(12, 17)", "12 → 17", "12 -> 17", "12=>17", "12 seconds until 17 seconds",
    "12 Sec through 17 Sec", "between 12 and 17 seconds", "between 00:12 and 00:17", "00:00:12.0 - 00:00:17", "从12秒到17秒", "12至17",
    "It starts at 12 and ends at 17.", "about 12 seconds to about 17 seconds", "from second 12 to second 17", "0.2 min - 17 s",
    '{"Time": ["00:12", "17s"]}', '{"time": "12-17"}', '{"start": 12, "end": "17"}', '{"time": {"begin": 12, "stop": 17}}',
    '[{"start_time": "00:12", "end_time": 17, "label": "jump"}]', '{"timestamps": [[12, 14], [14, 17]]}', "[[12, 15], [14, 17]]",
    '["12 to 14", "14 to 17"]', "12 to 14 and 14 to 17", "{'time': (12, 17)}", '{"time": [12, 17],}', '"{\\"time\\": [12, 17]}"',
    'It is {"time": [1, 2]}, or rather {"time": [12, 17]}.', "Here: [12, 17] (seconds)", '{"time": [12, 17]', r"\boxed{[12, 17]}",
    r"\boxed{12 - 17}", r"\text{12 to 17}", "__12 to 17__", '```json\n{"time": [12, 17]}\n``` as seen in frame 3', "[1] says [12, 17]",
    '{"time": [17, 12]}', "17 to 12",
]  # fmt: skip
NO_SPANS = {
    "no_span": ["17", "12th to 17th", "12, 17 and 20 or so", "v1.2.3", "[12, 1e400]", "[12, NaN]", "soon", "CO2 in H2O", "9" * 61],
    "bad_shape": ["[12, 17, 20]", "[true, 17]", "[null, 17]", "[12]", '{"time": null}', '{"event": "jump"}', "[[]]", "[[12, 17], 20]"],
    "too_many": ["[1, 2] " * 101, "1 to 2, " * 101],
    "too_long": ["x" + " " * 10_000 + "12 to 17", "x" * 65_537],
    "too_complex": [" ".join(f"[{number} x]" for number in range(7_000))],
}  # fmt: skip


@pytest.mark.parametrize("content", SPANS)
def test_spans_in_every_dress(content):
    assert score(TIME, content).accuracy == pytest.approx(1)


@pytest.mark.parametrize(("cause", "content"), [(cause, text) for cause, texts in NO_SPANS.items() for text in texts])
def test_what_is_no_span(cause, content):
    found = score(TIME, content)
    assert (found.status, found.reason, found.accuracy) == ("unparsed", cause, 0)


def test_several_spans_and_units():
    assert score(TIME, "1 to 2 minutes", [60, 120]).accuracy == 1
    assert score(TIME, "1 minute and 5 seconds to 2 min", [65, 120]).accuracy == 1
    assert score(TIME, "between 1 minute and 90 seconds", [60, 90]).accuracy == 1
    assert score(TIME, "1h2m3s - 1:03:00", [3723, 3780]).accuracy == 1
    assert score(TIME, "-5 to 5", [0, 5]).accuracy == 0.5
    assert score(TIME, "[300, 600]", [10, 20], time_unit="second", answer_time_unit="frame", fps=30).accuracy == 1
    assert score(TIME, "00:10 - 00:20", [300, 600], time_unit="frame", answer_time_unit="frame", fps="30").accuracy == 1
    assert score(TIME, "[0.2, 0.5]", [10, 25], answer_time_unit="fraction", duration=50).accuracy == pytest.approx(1)
    assert score(TIME, "[5, 6]", [[0, 4], [5, 6], [8, 9]]).accuracy == pytest.approx(1 / 6)


def test_a_time_that_overflows_its_unit_is_no_time():
    found = score(TIME, "[[12, 17], [1e308, 1.5e308]]", answer_time_unit="fraction", duration=60)
    assert (found.status, found.reason) == ("unparsed", "bad_shape")


def test_nothing_to_find():
    for content in ("[]", "{}", "null", '{"time": []}', "None.", "**no event**", "The event does not occur.", "```json\n[]\n```"):
        assert score(TIME, content, []).accuracy == 1, content
        assert outcome(score(TIME, content)) == 0
    assert outcome(score(TIME, "[5, 5]", [])) == 0
    for content in ("[]", '{"boxes": []}', "No objects.", "not visible"):
        assert score(BOXES, content, []).accuracy == 1, content
        assert outcome(score(BOXES, content)) == 0
    assert outcome(score(BOXES, str(BOX), [])) == 0


def test_a_long_text_without_a_block_is_read_from_its_last_line():
    looked = "I looked at 2 frames over 30 seconds, one from 1 to 2 s. " * 8
    assert whole(TIME, f"{looked}\nThe event happens from 12 to 17 seconds.\nThat is 5 s of 30 s.").accuracy == 1
    assert whole(TIME, f"{looked[:250]}\n from 12 to 17").accuracy < 1
    assert whole(TIME, "<think>12 to 17</think>").reason == "no_answer"
    assert whole(TIME, "<think>12 to 17").reason == "truncated"


def test_clipping():
    for content, expected in (("[20, 40]", 1), ("[40, 50]", 0), ("[-10, 30]", 1 / 3)):
        assert score(TIME, content, [20, 30], {"clip": True}, duration=30).accuracy == pytest.approx(expected)
    assert score(TIME, "[20, 30]", [20, 30], {"clip": True}).reason == "missing_duration"
    assert score(TIME, "[20, 30]", [40, 50], {"clip": True}, duration=30).reason == "out_of_range"
    with pytest.raises(RequestError, match="row-1.*clop"):
        score(TIME, "[20, 30]", [20, 30], {"clop": True})


@pytest.mark.parametrize(("kind", "content", "iou"), [(TIME, "[12, 16]", 0.8), (BOXES, "[10, 20, 30, 36]", 0.8)])
def test_right_or_wrong_above_an_iou(kind: str, content: str, iou: float) -> None:
    for above, accuracy in ((0.0, 1), (0.7, 1), (0.8, 0)):
        found = score(kind, content, scoring={"above": above})
        assert (found.accuracy, found.parts["iou"]) == (accuracy, pytest.approx(iou))
    assert score(kind, content).accuracy == pytest.approx(iou)
    with pytest.raises(RequestError, match="above"):
        score(kind, content, scoring={"above": 1.0})


BOX_FORMS = [
    "[10,20,30,40]", "(10, 20, 30, 40)", "[10 20 30 40]", "10, 20, 30, 40", "(10,20),(30,40)", "(10, 20) to (30, 40)", "[[10,20],[30,40]]",
    "<|box_start|>(10,20),(30,40)<|box_end|>", "x1=10, y1=20, x2=30, y2=40", "10px 20px 30px 40px", '["10", "20", "30", "40"]',
    '{"BBox-2d": [10, 20, 30, 40]}', '[{"label": "a ] b", "bbox": [10, 20, 30, 40]}]', 'so {"label": "a ] b", "bbox": [10, 20, 30, 40]}',
    "[30, 40, 10, 20]", "{'position': (10, 20, 30, 40)}", "[10,20,30,40", r"\boxed{[10,20,30,40]}", "Here it is: {10, 20, 30, 40}",
    "[[10.0, 20.0, 30.0, 40.0]]", '{"boxes": {"box": [10, 20, 30, 40]}}', "```[10,20,30,40]```",
]  # fmt: skip


@pytest.mark.parametrize("content", BOX_FORMS)
def test_boxes_in_every_dress(content):
    assert outcome(score(BOXES, content)) == 1


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("[10, 20, 30]", "bad_shape"), ("[10, 20, 30, 40, 50]", "bad_shape"), ("[true, 20, 30, 40]", "bad_shape"),
        ('{"boxes": null}', "bad_shape"), ('{"boxes": {"car": [10, 20, 30, 40]}}', "bad_shape"), ("[1e999, 20, 30, 40]", "no_box"),
        (f"[{'9' * 400}, 20, 30, 40]", "bad_shape"), ("left of the car", "no_box"), ("1, 2, 3, 4 or 5", "no_box"),
        ("(1,2),(3,4),(5,6)", "bad_shape"), (str([BOX] * 101), "too_many"),
    ],
)  # fmt: skip
def test_what_is_no_box(content, cause):
    found = score(BOXES, content)
    assert (found.status, found.reason) == ("unparsed", cause)


def test_frames():
    declared = {"answer_box_frame": "thousand", "width": 640, "height": "480"}
    assert score(BOXES, "[200, 200, 600, 500]", [128, 96, 384, 240], **declared).accuracy == pytest.approx(1)
    xywh = score(BOXES, "[200, 200, 600, 500]", [128, 96, 256, 144], box_format="xywh", **declared)
    assert xywh.accuracy == pytest.approx(1)
    sizes = {"width": 640, "height": 480, "answer_width": 320, "answer_height": 240}
    assert score(BOXES, "[5, 10, 15, 20]", BOX, **sizes).accuracy == pytest.approx(1)
    outside = score(BOXES, str([BOX, [0, 0, 673, 10]]), BOX, width=640, height=480)
    assert (outside.accuracy, outside.parts["out_of_frame"]) == (0.5, 1)
    assert score(BOXES, str([BOX, [0, 0, 672, 10]]), BOX, width=640, height=480).parts["out_of_frame"] == 0
    assert score(BOXES, "[-60, 0, 500, 500]", [0, 0, 500, 500], box_frame="thousand").accuracy == 0
    track = score(TRACK, json.dumps({"boxes": {"1": [200, 200, 600, 500]}}), {"boxes": {"1": [128, 96, 384, 240]}}, **declared)
    assert track.accuracy == pytest.approx(1)


@pytest.mark.parametrize(
    ("problem_type", "gold", "row", "cause"),
    [
        *((kind, gold, {}, "missing") for kind in (TIME, BOXES, TUBE, TRACK) for gold in (None, "", "<answer> </answer>")),
        *(
            (TIME, gold, {}, "not_a_span")
            for gold in ("soon", 5, True, {}, [1, 2, 3], [1, float("nan")], [1, None], {"boxes": BOX}, "[1, 2, 3]")
        ),
        *((TIME, gold, {}, "bad_span") for gold in ([2, 2], [3, 1], "3 - 1", [[0, 1], [3, 2]], [-1e308, 1e308])),
        (TIME, [1, 2], {"time_unit": "frame"}, "missing_fps"),
        (TIME, [1, 2], {"answer_time_unit": "frame", "fps": 0}, "missing_fps"),
        (TIME, [0, 1], {"time_unit": "fraction"}, "missing_duration"),
        (TIME, [0, 1], {"time_unit": "minute"}, "time_unit"),
        *((BOXES, gold, {}, "not_a_box") for gold in ("there", 5, {}, [1, 2, 3], [1, 2, 3, None], {"time": [1, 2]}, [[BOX], 1])),
        *((BOXES, gold, {}, "bad_box") for gold in ([5, 5, 5, 9], [9, 0, 5, 9], [0, 0, 1e200, 1e200], [0, 0, 1e-200, 1e-200])),
        (BOXES, [5, 5, 0, 9], {"box_format": "xywh"}, "bad_box"),
        (BOXES, BOX, {"box_format": "cxcywh"}, "box_format"),
        (BOXES, BOX, {"box_frame": "percent"}, "box_frame"),
        (BOXES, BOX, {"box_frame": ["pixel"]}, "box_frame"),
        (BOXES, BOX, {"answer_box_frame": "unit"}, "missing_size"),
        (BOXES, BOX, {"answer_width": 320, "answer_height": 240}, "missing_size"),
        (TUBE, BOX, {}, "type"),
        (TUBE, "from 3 to 6", {}, "type"),
        (TUBE, {"boxes": TRACKED}, {}, "missing_time"),
        (TUBE, {"time": [], "boxes": TRACKED}, {}, "missing_time"),
        (TUBE, {"time": [6, 3], "boxes": TRACKED}, {}, "bad_span"),
        (TUBE, {"time": [3, 6], "boxes": BOX}, {}, "type"),
        (TRACK, {"boxes": {"x": BOX}}, {}, "bad_key"),
        (TRACK, {"boxes": {"1": [1, 2, 3]}}, {}, "not_a_box"),
        (TRACK, {"boxes": {"1": [1, 2, 1, 3]}}, {}, "bad_box"),
        (TRACK, {"boxes": {"1": None, "2": []}}, {}, "empty_track"),
    ],
)
def test_faulty_gold(problem_type, gold, row, cause):
    for content in (STRICT[problem_type], None):
        found = score(problem_type, content, gold, **row)
        assert (found.status, found.reason, found.accuracy, found.format) == ("invalid_gold", cause, None, None)


@pytest.mark.parametrize(
    ("problem_type", "content", "expected"),
    [
        (TUBE, json.dumps({"time": "3-6", "bbox": TRACKED}), 1),
        (TUBE, "It is " + json.dumps({"start": 6, "end": "3s", "boxes": TRACKED}) + " here", 1),
        (TUBE, json.dumps({"time": None, "boxes": TRACKED}), 0.5),
        (TUBE, '{"time": [3, 6], "boxes": [10, 20, 30, 40]}', 0.5),
        (TUBE, '{"time": [3, 6], "boxes": [{"t": 3, "box": [10, 20, 30, 40]}, {"second": "4s", "bbox_2d": [30, 40, 10, 20]}]}', 0.75),
        (TUBE, '{"time": [3, 6], "boxes": {"3": {"bbox": [10, 20, 30, 40]}, "3.0004": [[0, 0], [1, 1]]}}', 0.5),
        (TUBE, "from 00:03 to 00:06", 0.5),
        (TUBE, "{}", "bad_shape"),
        (TUBE, "somewhere", "no_span"),
        (TRACK, json.dumps(TRACKED), 1),
        (TRACK, "{3: (10, 20, 30, 40), '00:04': [10, 20, 30, 40]}", 0.5),
        (TRACK, '{"boxes": {"3": [1, 2, 3], "x": [10, 20, 30, 40]}}', 0),
        (TRACK, '{"boxes": {}}', 0),
        (TRACK, "{}", "bad_shape"),
        (TRACK, "3: [10, 20, 30, 40]", "no_json"),
        (TRACK, json.dumps({"boxes": {str(key): BOX for key in range(5_001)}}), "too_many"),
    ],
)  # fmt: skip
def test_tracks(problem_type, content, expected):
    assert outcome(score(problem_type, content)) == expected


def test_one_frame_or_a_sprayed_clip_earns_little():
    sprayed = {str(second): BOX for second in range(30)}
    found = score(TRACK, json.dumps({"boxes": sprayed}))
    assert found.accuracy == pytest.approx(4 / 30) and found.parts["viou"] == pytest.approx(4 / 30)
    assert score(TRACK, json.dumps({"boxes": sprayed}), scoring={"ignore_outside": True}).accuracy == 1
    one = score(TUBE, json.dumps({"time": [3, 6], "boxes": {"3": BOX}}))
    assert dict(one.parts) == {"tiou": 1, "miou": 0.25, "viou": 0.25, "out_of_frame": 0}
    between = score(TUBE, json.dumps({"time": [3, 6], "boxes": {**TRACKED, "4.5": BOX}}))
    assert (between.parts["miou"], between.parts["viou"]) == (1, 0.8)
    assert dict(score(TUBE, '{"time": [3, 6]}', {"time": [3, 6], "boxes": {}}).parts) == {"tiou": 1}


@pytest.mark.parametrize(
    ("problem_type", "content", "expected"),
    [
        (TIME, '{"time": [0, 1]}', 1), (TIME, '{"time": [[0, 1], [2, 3.5]], "why": "x"}', 1), (TIME, '{"time": []}', 1),
        (TIME, '{"time": [1, 0]}', 0.5), (TIME, '{"time": ["0", 1]}', 0.5), (TIME, '{"time": [false, 1]}', 0.5), (TIME, "[0, 1]", 0.5),
        (TIME, '{"Time": [0, 1]}', 0.5), (TIME, '{"time": [0, 1],}', 0.5), (TIME, '{"time": [[0, 1], 2]}', 0.5), (TIME, "[" * 60_000, 0.5),
        (TIME, f'{{"time": [0, {"9" * 400}]}}', 0.5), (TIME, '{"time": [0, 1e999]}', 0.5), (TIME, '{"time": [0, 1], "x": NaN}', 0.5),
        (BOXES, '{"boxes": [0, 0, 1, 1]}', 1), (BOXES, '{"boxes": [[0, 0, 1, 1]]}', 1), (BOXES, '{"boxes": []}', 1),
        (BOXES, '{"boxes": [1, 0, 0, 1]}', 0.5), (BOXES, '{"boxes": [0, 0, 1, "1"]}', 0.5), (BOXES, '{"boxes": [[0, 0], [1, 1]]}', 0.5),
        (BOXES, '{"bbox_2d": [0, 0, 1, 1]}', 0.5), (BOXES, '{"boxes": null}', 0.5),
        (TUBE, '{"time": [0, 1], "boxes": {"00:01": [0, 0, 1, 1]}}', 1), (TUBE, '{"time": [0, 1], "boxes": {}}', 0.5),
        (TUBE, '{"boxes": {"1": [0, 0, 1, 1]}}', 0.5), (TUBE, '{"time": [0, 1], "boxes": {"one": [0, 0, 1, 1]}}', 0.5),
        (TRACK, '{"boxes": {"1": [0, 0, 1, 1]}}', 1), (TRACK, '{"1": [0, 0, 1, 1]}', 0.5), (TRACK, '{"boxes": {"1": [0, 0, 1]}}', 0.5),
    ],
)  # fmt: skip
def test_strict_form(problem_type, content, expected):
    assert score(problem_type, content).format == expected


@pytest.mark.parametrize(
    ("problem_type", "name"),
    [
        *((spelling, TIME) for spelling in ("Temporal Grounding", "temporal_grounding", "temporal video-grounding")),
        *(
            (spelling, "spatial-temporal-grounding")
            for spelling in ("Spatial-Temporal grounding", "spatio/temporal grounding", "STVG", "Tracking")
        ),
        *((spelling, BOXES) for spelling in ("spatial  grounding", "Spatial_Grounding")),
    ],
)
def test_every_spelling_routes_and_has_a_prompt(problem_type, name):
    kind = TRACK if problem_type == "Tracking" else TUBE if name.startswith("spatial-temporal") else name
    assert score(kind, STRICT[kind]).accuracy == 1
    assert whole(problem_type, f"<answer>{STRICT[kind]}</answer>", GOLD[kind]).value == pytest.approx(1)
    assert template_for(problem_type) == name


def test_the_prompt_names_form_unit_and_frame():
    def prompt(problem_type: str, **row: Any) -> str:
        sample = Sample(id="row-1", problem="Where?", answer="SECRET", problem_type=problem_type, extra=row)
        return render(sample, template_for(problem_type))[-1]["content"][-1]["text"]

    assert '{"time": [start, end]}' in prompt(TIME) and "Times are seconds" in prompt(TIME, time_unit="frame")
    assert "25 frames per second" in prompt(TIME, answer_time_unit="frame", fps=25)
    assert '{"boxes": [x1, y1, x2, y2]}' in prompt(BOXES) and "320 wide and 240 high" in prompt(
        BOXES, width=640, height=240, answer_width=320
    )
    assert "from 0 to 1000" in prompt(BOXES, box_frame="thousand") and "from 0 to 1." in prompt(TUBE, answer_box_frame="unit")
    assert '"time": [start, end], "boxes": {"t": [x1' in prompt(TUBE) and '"time"' not in prompt(TRACK)
    assert "number of a frame" in prompt(TRACK, time_unit="frame")


# Properties ------------------------------------------------------------------------------------------------------

SIDE = st.integers(0, 100).map(lambda value: value / 4)
LENGTH = st.integers(1, 40).map(lambda value: value / 4)
SPAN = st.builds(lambda start, length: (start, start + length), SIDE, LENGTH)
A_BOX = st.builds(lambda x, y, width, height: (x, y, x + width, y + height), SIDE, SIDE, LENGTH, LENGTH)
A_TRACK = st.dictionaries(st.integers(0, 20).map(str), A_BOX.map(list), min_size=1, max_size=8)
CHECKED = settings(max_examples=60, deadline=None)


@CHECKED
@given(st.lists(SPAN, min_size=1, max_size=5), st.lists(SPAN, min_size=1, max_size=5), SPAN)
def test_span_iou_is_symmetric_and_wrong_spans_never_help(gold, answer, wrong):
    found = score(TIME, json.dumps({"time": answer}), gold)
    assert 0 <= found.accuracy <= 1 and found.format == 1
    assert found.accuracy == pytest.approx(score(TIME, json.dumps({"time": gold}), answer).accuracy, abs=1e-9)
    ticks = [{tick for tick in range(200) for start, end in side if start <= tick / 4 < end} for side in (gold, answer)]
    assert found.accuracy == pytest.approx(len(ticks[0] & ticks[1]) / len(ticks[0] | ticks[1]))
    far = (wrong[0] + 200, wrong[1] + 200)
    assert score(TIME, json.dumps({"time": [*answer, far]}), gold).accuracy <= found.accuracy + 1e-9
    assert set_iou(gold, gold) == 1


@CHECKED
@given(st.lists(A_BOX, min_size=1, max_size=4), st.lists(A_BOX, min_size=1, max_size=4), A_BOX)
def test_boxes_are_matched_optimally(gold, answer, wrong):
    found = score(BOXES, json.dumps({"boxes": answer}), gold)
    assert found.format == 1
    assert found.accuracy == pytest.approx(score(BOXES, json.dumps({"boxes": gold}), answer).accuracy, abs=1e-9)
    few, many = sorted((gold, answer), key=len)
    best = max(sum(map(iou, few, chosen)) for chosen in itertools.permutations(many, len(few)))
    assert 0 <= found.accuracy <= 1 and found.accuracy == pytest.approx(best / len(many))
    far = [side + 200 for side in wrong]
    assert score(BOXES, json.dumps({"boxes": [*answer, far]}), gold).accuracy <= found.accuracy + 1e-9
    assert matched_iou(list(gold), gold) == 1


@CHECKED
@given(A_TRACK, A_TRACK, SPAN, SPAN, st.integers(0, 60), A_BOX)
def test_wrong_keys_never_help(gold, answer, when, said, key, wrong):
    rows = {TUBE: ({"time": when, "boxes": gold}, {"time": said, "boxes": answer}), TRACK: ({"boxes": gold}, {"boxes": answer})}
    for problem_type, (right, given_) in rows.items():
        found = score(problem_type, json.dumps(given_), right)
        assert 0 <= found.accuracy <= 1 and found.format == 1
        back = score(problem_type, json.dumps(right), given_)
        assert [found.parts.get(part) for part in ("tiou", "viou")] == pytest.approx([back.parts.get(part) for part in ("tiou", "viou")])
        far = [side + 200 for side in wrong]
        more = {**given_, "boxes": {str(key): far, **answer}}
        assert score(problem_type, json.dumps(more), right).accuracy <= found.accuracy + 1e-9
        assert score(problem_type, json.dumps(right), right).accuracy == 1


@CHECKED
@given(*(st.floats(allow_nan=False, allow_infinity=False) for _ in range(4)))
def test_degenerate_and_huge_boxes(x1, y1, x2, y2):
    found = score(BOXES, f"[{x1}, {y1}, {x2}, {y2}]")
    assert found.status == "scored" and 0 <= found.accuracy <= 1
    assert score(TIME, f"[{x1}, {x2}]").status == "scored"


@pytest.mark.parametrize("problem_type", [TIME, BOXES, TUBE, TRACK])
def test_dress_does_not_change_the_accuracy(problem_type):
    contents = {TIME: ["12 to 17", "[12, 17]"], BOXES: ["[10, 20, 30, 40]", "(10,20),(30,40)"]}.get(problem_type, [])
    for content in [STRICT[problem_type], *contents]:
        dressed = [
            content,
            f"**{content}**",
            f"`{content}`",
            f"```\n{content}\n```",
            f"```json\n{content}\n```",
            f"*{content}*",
            f"${content}$",
        ]
        dressed += [] if '"' in content else [f'"{content}"', f"“{content}”"]
        for text in dressed:
            assert score(problem_type, text).accuracy == 1, text
        assert whole(problem_type, f"<think>[1, 2] <answer>[1, 2]</answer></think>\n<answer>{content}</answer>").accuracy == 1
        assert whole(problem_type, f"<answer>{content}</answer><|im_end|><answer>[1, 2]</answer>").accuracy == 1
        assert whole(problem_type, f"Here it is: {content}").accuracy == 1


PIECES = (
    "<think>", "</think>", "<answer>", "</answer>", "[", "]", "{", "}", "(", ")", '"', "'", "\\", "```", "```json\n", "\n", " ", ",", ":",
    "-", "–", " to ", "between ", " and ", "12", "1:05", "3.5", "1e999", "-4", " s", "min", '"time":', '"boxes":', '"10":', '"start"',
    "null",
    "NaN", "true", "[1, 2]", "[1,2,3,4]", "\\boxed{", "none", "**", "\u0301", "9" * 70,
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join), st.sampled_from([TIME, BOXES, TUBE, TRACK]))
def test_random_text_never_raises_and_stays_in_range(response, problem_type):
    for text in (response, f"<answer>{response}</answer>"):
        found = whole(problem_type, text)
        assert found.status in ("scored", "unparsed") and 0 <= found.accuracy <= 1, found
        assert found == whole(problem_type, text)


@pytest.mark.slow
def test_a_hundred_thousand_random_texts():
    draw = random.Random(0)
    for problem_type in (TIME, BOXES, TUBE, TRACK):
        sample = Sample(id="row-1", problem="", answer=GOLD[problem_type], problem_type=problem_type)
        for _ in range(25_000):
            response = "".join(draw.choices(PIECES, k=draw.randrange(1, 40)))
            found = SCORER.score(sample, response)
            assert found.status in ("scored", "unparsed") and 0 <= found.accuracy <= 1, (problem_type, response, found)


@pytest.mark.parametrize("token", ["[1,2,3,4],", "()", "[[[[[[[[]]]]]]]]", "{", '\\"', "between 1 and ", "```[x]"])
def test_repetitions_take_bounded_time(token):
    started = time.process_time()
    whole(TUBE, token * (390_000 // len(token)))
    assert time.process_time() - started < 3
    for problem_type, size in ((TIME, 65_000), (TRACK, 262_000)):
        started = time.process_time()
        score(problem_type, '{"boxes": {' + (token * size)[: size - 20] + "}}")
        assert time.process_time() - started < 3  # measured below 1.1 on a busy machine


# Reading JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", [1, 2]), ("```json\n[1]\n```", [1]), ("```\n[1]\n``` and ```\n[2]\n``` and ```\nx\n```", [2]), ('"[1, 2]"', [1, 2]),
        ('"[1, 2"', "[1, 2"), ("{1: (2, None)}", {"1": [2, None]}), ("[1, 2,]", [1, 2]),
        (r"['\d', '\\d', '\'']", [r"\d", r"\d", "'"]), ("'a'", "a"), ("null", None),
    ],
)  # fmt: skip
def test_whole_json(text, expected):
    assert JsonText(text).whole() == expected


@pytest.mark.parametrize(
    "text", ["", "1 + 1", "[1, NaN]", "[1, Infinity]", "__import__('os')", "f'{1}'", "[x for x in [1]]", "[" * 40 + "]" * 40]
)
def test_what_is_no_json(text):
    with pytest.raises(ValueError):
        JsonText(text).whole()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a [1] b {\"c\": [2]} d", [[1], {"c": [2]}]), ("[1 [2] {x} [3]", [[2], [3]]), ('5" [1] 6', [[1]]), ('[5" [1] 6', [[1]]),
        ('{"a": "]}"} [2', [{"a": "]}"}]), ("[0, 5} [1]", [[1]]), ("{[1, 2]}", [[1, 2]]), ("[" * 40 + "]" * 40, None),
    ],
)  # fmt: skip
def test_regions(text, expected):
    found = [region.value for region in JsonText(text).regions()]
    if expected is None:  # what is nested deeper than the limit is left out, from outside
        assert len(json.dumps(found[0])) == 64
    else:
        assert found == expected


def test_numbers_and_strict_json():
    assert [number(value) for value in (1, 1.5, " 2 ", "-3e2", ".5", "−4")] == [1, 1.5, 2, -300, 0.5, -4]
    for value in (True, None, "x", "1 2", float("inf"), 10**400, "9" * 61, [1], "nan", ""):
        assert number(value) is None
    with pytest.raises(ValueError):
        strict_json("{'a': 1}")

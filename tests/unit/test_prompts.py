"""Prompts: the text of each template, media at their marks, refusals; with a stand-in for model and media store."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evr1_cli.data import app
from evr1_core.data.prompts import PromptBuilder, PromptFault, render, template_for
from evr1_core.data.templates import Templates, shipped
from evr1_core.errors import MediaError, RequestError
from evr1_core.media.plan import Plan
from evr1_core.types import Budget, Clip, MediaRef, PatchFactors, Sample

VIDEO, IMAGE = MediaRef("/m/a.mp4", "video"), MediaRef("/m/b.png", "image")


def sample(problem: str = "What happens?", media: tuple[MediaRef, ...] = (VIDEO,), **fields: Any) -> Sample:
    return Sample(**{"id": "s1", "problem": problem, "answer": "SECRET", "problem_type": "multiple-choice", "media": media, **fields})


def content(made: Sample, template: str = "default", **settings: Any) -> list[str]:
    """The user turn: texts as they are, media as `[kind]`."""
    return [item.get("text", f"[{item['type']}]") for item in render(made, template, **settings)[-1]["content"]]


class Adapter:
    """Turns of the form `user:...`, one `#` per medium, one token per character and one per frame."""

    directory = Path()
    factors = PatchFactors(pixels=28)
    special_texts = frozenset({"<|im_end|>", "<|video_pad|>"})

    def render(self, messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
        turns = [f"{turn['role']}:" + "".join(item.get("text", "#") for item in turn["content"]) for turn in messages]
        return "\n".join(turns) + "\nassistant:<think>", "<think>"

    def encode(self, text: str, clips: Sequence[Clip]) -> tuple[tuple[int, ...], dict[str, Any]]:
        if text.count("#") != len(clips):
            raise ValueError(f"{text.count('#')} placeholders for {len(clips)} media")
        return (0,) * (len(text) - len(clips) + sum(len(clip.times) for clip in clips)), {}

    def plan_tokens(self, text: str, plans: Sequence[Plan]) -> int:
        return len(text) - len(plans) + sum(plan.frames for plan in plans)


class Store:
    """Clips of eight frames; the file's name says what goes wrong."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_many(self, refs: Sequence[MediaRef], budget: Any, factors: PatchFactors, workers: int) -> list[Clip | MediaError]:
        self.loaded += [ref.path for ref in refs]
        return [MediaError(ref.path, "damaged", "no key frame") if "damaged" in ref.path else self.clip(ref.kind) for ref in refs]

    def clip(self, kind: Any) -> Clip:
        frames = 8 if kind == "video" else 1
        times, indices = tuple(map(float, range(frames))), tuple(range(frames))
        pixels = np.zeros((frames, 3, 28, 28), np.uint8)
        return Clip(pixels, times, indices, 1.0, frames, float(frames), 0, "none", "hash", "key", kind)

    def plan_many(self, refs: Sequence[MediaRef], budget: Any, factors: PatchFactors, workers: int) -> list[Plan | MediaError]:
        return [MediaError(ref.path, "damaged", "no key frame") if "damaged" in ref.path else self.planned(ref.kind) for ref in refs]

    def planned(self, kind: Any) -> Plan:
        clip = self.clip(kind)
        frames, (height, width) = len(clip.times), clip.size
        return Plan(kind, frames, height, width, clip.indices, clip.times, clip.source_fps, frames, clip.duration, clip.duration)


def builder(**settings: Any) -> PromptBuilder:
    return PromptBuilder(Adapter(), Store(), Budget(), "default", **settings)


# Rendering -------------------------------------------------------------------------------------------------------


def test_media_stand_at_their_marks() -> None:
    made = sample("Does <video> show <image>?", (VIDEO, IMAGE))
    first, *rest = content(made)
    assert (first, rest[0], rest[1], rest[2]) == ("Does ", "[video]", " show ", "[image]")
    assert rest[3].startswith("?\n\nAnswer from what the images and the video show.")


def test_media_without_a_mark_stand_in_front() -> None:
    assert content(sample("Is it <video>?", (IMAGE, VIDEO)))[:3] == ["[image]", "Is it ", "[video]"]
    assert content(sample(media=(IMAGE, IMAGE, VIDEO)))[:3] == ["[image]", "[image]", "[video]"]


def test_marks_without_a_medium_are_text() -> None:
    made = sample("Use the \\<video> element in <image>.", (IMAGE,), options=("<video>", "<image>"))
    texts = content(made, "multiple-choice")
    assert texts[0] == "Use the <video> element in " and texts[1] == "[image]" and len(texts) == 3
    assert "A. <video>\nB. <image>" in texts[2]


@pytest.mark.parametrize(("media", "word"), [((), "Answer the question."), ((VIDEO,), "video shows"), ((IMAGE,), "image shows")])
def test_the_wording_follows_the_media(media: tuple[MediaRef, ...], word: str) -> None:
    text = content(sample(media=media))[-1]
    assert word in text and (media or "video" not in text)


def test_multiple_choice_lists_labelled_options_and_asks_for_the_letter() -> None:
    text = content(sample(options=("A. Red", "B. Blue")), "multiple-choice")[-1]
    assert text == (
        "What happens?\n\nOptions:\nA. Red\nB. Blue\n\n"
        "Answer from what the video shows. Reason step by step first. "
        "Then write the final answer between <answer> and </answer>, once, as the last thing.\n"
        "Between the tags stands only the letter of the option you choose."
    )
    several = sample(options=("Red", "Blue"), scoring={"multi_select": True})
    assert "letters of all right options" in content(several, "multiple-choice")[-1]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_template_renders_and_never_shows_the_answer(name: str) -> None:
    for media in ((), (VIDEO,), (IMAGE,), (IMAGE, VIDEO)):
        made = sample(media=media, options=("x", "y"), extra={"solution": "SECRET"}, offline=("SECRET",))
        text = "".join(content(made, name))
        assert text.count("What happens?") == 1 and "<answer>" in text and "SECRET" not in text and "  " not in text


def test_a_system_turn() -> None:
    turns = render(sample(), "default", system="Be brief.")
    assert [turn["role"] for turn in turns] == ["system", "user"]
    assert turns[0]["content"] == [{"type": "text", "text": "Be brief."}]


def test_templates_are_named_by_the_reward_else_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from evr1_core import plugins
    from evr1_core.specs import RewardSpec

    specs = {
        "a": RewardSpec(name="multiple-choice", problem_types=("a",), target="x:y", summary=""),
        "b": RewardSpec(name="colour", problem_types=("b",), target="x:y", summary=""),
        "c": RewardSpec(name="colour", problem_types=("c",), target="x:y", summary="", template="math"),
    }
    monkeypatch.setattr(plugins, "reward_for", lambda name, use: specs[use.get(name, name)])
    assert [template_for(name) for name in "abc"] == ["multiple-choice", "default", "math"]
    assert template_for("a", {"a": "c"}) == "math"


# Templates of the user -------------------------------------------------------------------------------------------


def put(folder: Path, text: str, name: str = "own.j2") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_file_gets_every_column_and_may_extend_a_shipped_one(tmp_path: Path) -> None:
    own = put(tmp_path, "{{ source }}/{{ subtitle }}/{{ problem_type }}/{{ data_type }}: {{ problem }}")
    made = sample("Why?", extra={"subtitle": "sub", "problem": "other"}, source="set")
    assert content(made, own) == ["set/sub/multiple-choice/video: ", "[video]", "Why?"]
    extending = put(tmp_path, '{% extends "base.j2" %}{% block form %}One word.{% endblock %}', "more.j2")
    assert content(made, extending)[-1].endswith("One word.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ problem }} {{ subtitel }}", "'subtitel' is undefined; the row offers data_type, options, problem"),
        ("{{ problem }} {{ answer }}", "'answer' is undefined"),
        ("{{ problem }} {{ solution }}", "'solution' is undefined"),
        ("no question", "must print `problem` exactly once"),
        ("{{ problem }}{{ problem }}", "must print `problem` exactly once"),
        ("{{ problem", "own.j2:1: "),
        ('{% extends "nothing.j2" %}', "nothing.j2, which is neither beside it nor shipped"),
    ],
)
def test_faulty_templates_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        content(sample(extra={"solution": "x"}), put(tmp_path, text))
    assert message in str(caught.value) and "'s1'" in str(caught.value)


def test_unknown_templates_name_the_nearest() -> None:
    for name, message in (
        ("multipel-choice", "did you mean 'multiple-choice'"),
        ("x/none.j2", "no such file"),
        ("none_such:a.j2", "no package"),
    ):
        with pytest.raises(RequestError, match=message):
            content(sample(), name)


def test_templates_of_packages_and_hashes(tmp_path: Path) -> None:
    templates = Templates()
    assert content(sample(), "evr1_templates:prompts/math.j2", templates=templates)[-1].endswith("where it is a formula.")
    own = put(tmp_path, '{% extends "base.j2" %}')
    content(sample(), own, templates=templates)
    assert set(templates.sources(own)) == {"own.j2", "base.j2"} and all(len(value) == 64 for value in templates.sources(own).values())
    assert set(templates.sources("evr1_templates:prompts/math.j2")) == {"math.j2", "multiple-choice.j2", "base.j2"}


# Building --------------------------------------------------------------------------------------------------------


def test_a_prompt_holds_what_the_model_is_shown() -> None:
    prompt = builder(system="Be brief.").build(sample("See <video>.", (VIDEO,)))
    assert prompt.text.startswith("system:Be brief.\nuser:See #.") and prompt.prefill == "<think>"
    assert len(prompt.clips) == 1 and len(prompt.token_ids) == len(prompt.text) - 1 + 8
    assert prompt.messages[-1]["content"][1] == {"type": "video"}


def test_a_video_of_two_rows_is_decoded_once_per_batch() -> None:
    made = builder()
    prompts, exclusions = made.build_batch([sample(id="a"), sample(id="b"), sample(id="c", media=(IMAGE, VIDEO))])
    assert len(prompts) == 3 and not exclusions
    assert made.store.loaded == ["/m/a.mp4", "/m/b.png"]  # type: ignore[attr-defined]
    assert prompts[0].clips[0] is prompts[2].clips[1]


def test_damaged_media_are_excluded_or_stop_with_the_name() -> None:
    rows = [
        sample(id="a", media=(MediaRef("/m/damaged.mp4", "video"),)),
        sample(id="b"),
        sample(id="c", media=(MediaRef("/m/damaged.mp4", "video"),)),
    ]
    made = builder(bad_rows="exclude")
    prompts, exclusions = made.build_batch(rows)
    assert [prompt.sample.id for prompt in prompts] == ["b"]
    assert [(e.sample_id, e.reason, e.detail) for e in exclusions] == [
        (name, "damaged_media", "/m/damaged.mp4: damaged: no key frame") for name in "ac"
    ]
    assert len(made.store.loaded) == 2, "a damaged file is tried once"  # type: ignore[attr-defined]
    with pytest.raises(RequestError, match="sample 'a': damaged_media: /m/damaged.mp4: damaged: no key frame"):
        builder().build_batch(rows)


def test_a_long_prompt_is_excluded_with_its_numbers_and_never_cut() -> None:
    tokens = len(builder().build(sample()).token_ids)
    assert builder(max_prompt_tokens=tokens).build(sample())
    prompts, exclusions = builder(max_prompt_tokens=tokens - 1).build_batch([sample()])
    assert not prompts and exclusions[0].reason == "too_long"
    assert exclusions[0].detail.startswith(f"{tokens} prompt tokens, allowed are {tokens - 1}")
    with pytest.raises(PromptFault, match="too_long"):
        builder(max_prompt_tokens=tokens - 1, overlong="error").build_batch([sample()])


@pytest.mark.parametrize(
    "fields",
    [{"problem": "x <|im_end|> y"}, {"options": ("<|video_pad|>", "b")}, {"problem": "x <|im_<video>end|>"}],
    ids=["problem", "option", "split"],
)
def test_control_texts_in_a_row_are_refused(fields: dict[str, Any]) -> None:
    prompts, exclusions = builder(bad_rows="exclude").build_batch([sample(**fields)])
    if "<video>" in fields.get("problem", ""):
        assert prompts, "the medium stands between the two halves"
    else:
        assert exclusions[0].reason == "special_token" and "control text" in exclusions[0].detail


def test_media_and_placeholders_that_differ_stop_the_run() -> None:
    with pytest.raises(RequestError, match="sample 's1': 2 placeholders for 1 media"):
        builder(bad_rows="exclude").build_batch([sample("Is # a hash?")])


def test_tokens_planned_from_headers_are_the_tokens_of_the_prompt() -> None:
    made = builder()
    for media in ((), (VIDEO,), (IMAGE,), (VIDEO, VIDEO), (IMAGE, VIDEO)):
        assert made.plan_tokens(sample(media=media)) == len(made.build(sample(media=media)).token_ids)
    with pytest.raises(PromptFault, match="damaged_media"):
        made.plan_tokens(sample(media=(MediaRef("/m/damaged.mp4", "video"),)))


def test_faults_survive_a_process_boundary() -> None:
    fault = pickle.loads(pickle.dumps(PromptFault("a", "too_long", "9 tokens")))
    assert fault.exclusion.reason == "too_long" and str(fault) == "sample 'a': too_long: 9 tokens"


# Command line ----------------------------------------------------------------------------------------------------

ROWS = """\
{"problem": "Which <video>?", "answer": "A", "options": ["Red", "Blue"], "problem_type": "mcq", "video": "a.mp4", "video_start": 2}
{"problem": "", "answer": "A", "problem_type": "mcq"}
"""


def test_data_show_prints_the_prompt_of_training(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(ROWS, encoding="utf-8")
    for row in ("rows-1", "1"):
        printed = CliRunner().invoke(app, ["show", str(data), row]).output
        assert f"Which [video: {tmp_path}/a.mp4 from 2.0 s to the end]\n?" in printed and "A. Red\nB. Blue" in printed
    assert isinstance(CliRunner().invoke(app, ["show", str(data), "rows-2"]).exception, RequestError)
    assert "no row 'rows-9'" in str(CliRunner().invoke(app, ["show", str(data), "rows-9"]).exception)


def test_data_check_counts_and_names_bad_rows(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(ROWS, encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(data), "--no-media"])
    assert done.exit_code == 1 and f"{data}:2: problem: is empty" in done.output
    assert done.output.endswith("2 rows: 1 good, 1 bad (1 empty_problem)\n")
    assert "missing_media" in CliRunner().invoke(app, ["check", str(data), "--json"]).output
    (tmp_path / "a.mp4").touch()
    assert CliRunner().invoke(app, ["check", str(data), "--limit", "1"]).exit_code == 0


def test_data_check_finds_gold_answers_that_cannot_be_scored(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"problem": "Which?", "answer": "E", "options": ["Red", "Blue"], "problem_type": "mcq"}', encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(data)])
    assert done.exit_code == 1 and f"{data}:1: answer: invalid_gold: no_such_option: 'E'" in done.output

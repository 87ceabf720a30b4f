"""`evr1 report`: one page, nothing loaded from elsewhere, hostile text is text, frames of the cache bounded in number and size."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from evr1_core.evaluate.page import Frames, page, script_json
from evr1_core.evaluate.stored import open_run
from evr1_core.media.cache import FrameCache
from tests.support.stored_runs import clip, evr1, question, write_run

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \ud800 \0 \u202e {{ 7*7 }} </pre></details>"


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def clips_of(html: str) -> dict[str, dict]:
    match = re.search(r'<script type="application/json" id="clips">(.*?)</script>', html, re.DOTALL)
    assert match
    return json.loads(match.group(1))


def test_hostile_text_is_text(tmp_path: Path) -> None:
    samples = [question(0, problem=HOSTILE, options=(HOSTILE, "b", "c", "d"), extra={"kind": HOSTILE}), question(1)]
    run = write_run(tmp_path / "run", samples, {"q0": HOSTILE, "q1": "A"}, name=HOSTILE[:80], prompt=HOSTILE[:80])
    html = page([open_run(run)], frames=Frames(), cache_dir=tmp_path)
    elements = Elements(html)
    assert elements.count("script") == 2 and elements.count("img") == 0, "the page's own scripts alone"
    assert "49" not in re.findall(r"\{\{.*?\}\}|49", html) and "&lt;img src=x onerror" in html
    assert not any(name.startswith("on") for _, attributes in elements.found for name in attributes)
    assert html.encode("utf-8") and "\0" not in html


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [question(0)], {"q0": "A"})
    html = page([open_run(run)], frames=Frames(), cache_dir=tmp_path)
    for tag, attributes in Elements(html).found:
        assert tag not in ("link", "iframe", "object", "embed") and not {"src", "href", "action"} & set(attributes), (tag, attributes)
    assert "http" not in html and "@import" not in html and "fetch(" not in html


def test_frames_of_the_cache(tmp_path: Path) -> None:
    samples = [question(i, videos=2) for i in range(6)]
    FrameCache(tmp_path / "frames").put(clip(samples[0], 20))
    run = write_run(tmp_path / "run", samples, {sample.id: "A" for sample in samples}, frames=20)
    taken = Frames(per_clip=5)
    found = clips_of(page([open_run(run)], frames=taken, cache_dir=tmp_path / "frames"))
    assert len(found) == 2, "six questions about two videos"
    shown, lost = found[clip(samples[0]).key], found[clip(samples[1]).key]
    assert [frame["time"] for frame in shown["frames"]] == [0.0, 2.5, 5.0, 7.0, 9.5] and shown["why"] == "5 of 20 frames"
    assert lost["frames"] == [] and "not in the frame cache" in lost["why"]
    head, _, body = shown["frames"][0]["url"].partition(",")
    picture = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == "data:image/jpeg;base64" and picture.size == (48, 32)
    nothing = clips_of(page([open_run(run)], frames=Frames(max_bytes=0), cache_dir=tmp_path / "frames"))
    assert all(not one["frames"] and "--megabytes" in one["why"] for one in nothing.values())


def test_large_runs_are_thinned_evenly(tmp_path: Path) -> None:
    samples = [question(i) for i in range(50)]
    run = write_run(tmp_path / "run", samples, {sample.id: "A" for sample in samples})
    html = page([open_run(run)], frames=Frames(), questions=10, cache_dir=tmp_path)
    shown = re.findall(r"<strong>(q\d+)</strong>", html)
    assert shown == [f"q{i}" for i in range(0, 50, 5)] and "10 of 50 questions, evenly over the file" in html


def test_runs_beside_each_other_with_signs_on_top(tmp_path: Path) -> None:
    samples = [question(i, "ABCD"[i % 4]) for i in range(20)]
    a = write_run(tmp_path / "a", samples, {sample.id: str(sample.answer) for sample in samples}, name="good", official=True)
    b = write_run(tmp_path / "b", samples, {sample.id: "B" for sample in samples}, name="constant", settings={"seed": 2})
    html = page([open_run(a), open_run(b)], frames=Frames(), cache_dir=tmp_path)
    assert html.index("may say nothing about the model") < html.index("<h2>")
    assert html.count("<h2>") == 1 and "good: strict" in html and "constant: strict" in html
    assert "official accuracy: 100.0" in html and "&#34;absent&#34; -&gt; 2" in html
    assert Elements(html).count("svg") == 1 and html.count('data-status="right wrong"') == 15


def test_scripts_can_hold_any_json() -> None:
    assert json.loads(script_json({"a": "</script><!--&"})) == {"a": "</script><!--&"} and "<" not in script_json("<!--")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "suite" / "one", [question(0)], {"q0": "A"}, settings={"questions": {"data": ["one"]}})
    write_run(tmp_path / "suite" / "two", [question(0)], {"q0": "A"}, settings={"questions": {"data": ["two"]}})
    assert evr1(["report", str(tmp_path / "suite"), "--cache-dir", str(tmp_path)]) == 0
    assert "0 clips with frames; of 1 clips no frames" in capsys.readouterr().out
    html = (tmp_path / "suite" / "report.html").read_text()
    assert "<h2>one</h2>" in html and "<h2>two</h2>" in html

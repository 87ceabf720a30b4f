"""The judge against a real server on this machine: replies, faults, budget, cache, concurrency, and where the key goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from evr1_core.config.rewards import JudgeEngineSection, JudgeSection, RewardSection
from evr1_core.errors import RequestError
from evr1_core.scoring import ScoringFailed
from evr1_core.scoring import judge as judge_module
from evr1_core.scoring.judge import Judge, open_judge
from evr1_core.scoring.judge_cache import JudgeCache, reply_key
from evr1_core.scoring.judge_endpoint import _retry_after
from evr1_core.scoring.score import check_judge
from evr1_core.types import Sample

KEY = "sk-secret-0123456789"


class Server(ThreadingHTTPServer):
    """Answers with `answer(number of the request, question)`: (status, headers, body), or a text that is the reply."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Callable[[int, str], Any] = lambda number, question: f"reply to {question}"
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.now = self.most = 0
        self.guard = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.guard:
            self.server.requests.append({"path": self.path, **body})
            self.server.keys.add(self.headers.get("Authorization"))
            number = len(self.server.requests)
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            found = self.server.answer(number, body["messages"][0]["content"])
        finally:
            with self.server.guard:
                self.server.now -= 1
        status, headers, content = (200, {}, completion(found)) if isinstance(found, str) else found
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client may have gone
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def completion(text: object, tokens: int = 10) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(judge_module, "BACK_OFF", 0.02)
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def ask(server: Server, tmp_path: Path) -> Iterator[Callable[..., Judge]]:
    """Judges of this server; without a cache unless told otherwise."""
    made: list[Judge] = []

    def make(**fields: Any) -> Judge:
        fields = {"model": "grader", "url": server.url, "cache": False, "cache_dir": tmp_path / "judge", **fields}
        found = open_judge(JudgeSection(**fields))
        assert found
        made.append(found)
        return found

    yield make
    for one in made:
        one.close()


def failure(judge: Judge, question: str = "q") -> str:
    with pytest.raises(ScoringFailed) as caught:
        judge.ask(question)
    assert caught.value.cause.startswith("judge_unavailable: ")
    return caught.value.cause.removeprefix("judge_unavailable: ")


def test_a_reply(server: Server, ask: Callable[..., Judge]) -> None:
    judge = ask(extra={"seed": 1, "max_tokens": None, "max_completion_tokens": 7})
    assert judge.ask("Is it red? \ud800 漢") == "reply to Is it red? ? 漢"
    [request] = server.requests
    assert request == {
        "path": "/v1/chat/completions", "model": "grader", "temperature": 0.0, "seed": 1, "max_completion_tokens": 7,
        "messages": [{"role": "user", "content": "Is it red? ? 漢"}],
    }  # fmt: skip
    assert server.keys == {None}
    counted = judge.counters.as_dict()
    assert counted.pop("seconds") > 0
    assert {name: count for name, count in counted.items() if count} == {"asked": 1, "requests": 1, "tokens": 10}


@pytest.mark.parametrize(
    "first",
    [
        (500, {}, b"oh"),
        (429, {"Retry-After": "0"}, b"{}"),
        (503, {"Retry-After": "nonsense"}, b""),
        (200, {}, b"no json"),
        (200, {}, b"[" * 100_000),
        (200, {}, b'{"choices": []}'),
        (200, {}, b'{"error": {"message": "overloaded"}}'),
        (200, {}, completion(None)),
        (200, {}, completion("  \n")),
        (200, {"Content-Length": "5000"}, b"cut off"),
    ],
)
def test_a_fault_that_passes(server: Server, ask: Callable[..., Judge], first: tuple) -> None:
    server.answer = lambda number, question: first if number == 1 else "good"
    judge = ask(timeout=1)
    assert judge.ask("q") == "good"
    assert (judge.counters.requests, judge.counters.retried, judge.counters.failed) == (2, 1, 0)


def test_a_fault_that_stays(server: Server, ask: Callable[..., Judge]) -> None:
    server.answer = lambda number, question: (500, {}, b'{"error": {"message": "no\\nmemory"}}')
    judge = ask(tries=3)
    assert failure(judge) == "HTTP 500: no memory (tries: 3)"
    assert (judge.counters.requests, judge.counters.failed) == (3, 1)


def test_a_refusal_is_not_repeated(server: Server, ask: Callable[..., Judge]) -> None:
    server.answer = lambda number, question: (404, {}, b'{"error": {"message": "model grader does not exist"}}')
    assert failure(ask()) == "HTTP 404: model grader does not exist"
    assert len(server.requests) == 1


def test_the_key_does_not_follow_a_redirect(server: Server, ask: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADER_KEY", KEY)
    with Server() as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        server.answer = lambda number, question: (307, {"Location": f"{other.url}/chat/completions"}, b"")
        assert failure(ask(api_key_env="GRADER_KEY")).endswith(f"rewards.judge.url may have to be {other.url}/chat/completions")
        other.shutdown()
    assert len(server.requests) == 1 and not other.requests


@pytest.mark.parametrize(
    "environment",
    [{"ALL_PROXY": "ftp://proxy"}, {"NO_PROXY": "[::1"}, {"SSL_CERT_FILE": "/nowhere"}, {"HTTP_PROXY": "http://me:pass word@proxy:x"}],
)
def test_an_environment_without_a_client(ask: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match="the proxies in the environment") as caught:
        ask()
    assert "pass word" not in str(caught.value)


def test_a_url_that_is_none(ask: Callable[..., Judge]) -> None:
    for url in ("http://[::1", "http://xn--/v1"):
        with pytest.raises(RequestError, match="look at the url"):
            ask(url=url)


def test_what_the_server_asks_to_wait_holds_for_every_question(server: Server, ask: Callable[..., Judge]) -> None:
    seen: list[float] = []

    def answer(number: int, question: str) -> Any:
        seen.append(time.monotonic())
        return (429, {"Retry-After": "0.4"}, b"{}") if number == 1 else "good"

    server.answer = answer
    judge = ask()
    first = judge.submit("a")
    while not judge.counters.retried:
        time.sleep(0.005)
    assert judge.ask("b") == first.result() == "good"
    assert len(seen) == 3 and min(seen[1:]) - seen[0] >= 0.39


def test_a_long_wait_is_not_waited_for(server: Server, ask: Callable[..., Judge]) -> None:
    server.answer = lambda number, question: (429, {"Retry-After": "3600"}, b"{}")
    assert "asks to wait 3600 s" in failure(ask())
    assert _retry_after(format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)) == pytest.approx(100, abs=3)
    assert [_retry_after(text) for text in ("-5", "soon", None)] == [0, None, None]


@pytest.mark.parametrize("drip", [False, True])
def test_a_slow_server(server: Server, ask: Callable[..., Judge], drip: bool) -> None:
    """The limit holds for the whole request, also when bytes keep coming."""
    stop = threading.Event()

    def answer(number: int, question: str) -> Any:
        stop.wait(5)
        return "late"

    def drop_by_drop(handler: Handler) -> None:
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(200)
        handler.end_headers()
        try:
            while not stop.wait(0.05):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            pass

    server.answer = answer
    if drip:
        server.RequestHandlerClass = type("Drip", (Handler,), {"do_POST": drop_by_drop})  # type: ignore[assignment]
    start = time.monotonic()
    assert failure(ask(timeout=0.3)) == "no reply within 0.3 s (tries: 2)"
    assert time.monotonic() - start < 2
    stop.set()


def test_nobody_listens(server: Server, ask: Callable[..., Judge]) -> None:
    judge = ask(url="http://127.0.0.1:9/v1")
    assert "ConnectError" in failure(judge) and judge.counters.requests == 2


def test_a_huge_reply_is_not_read(server: Server, ask: Callable[..., Judge]) -> None:
    server.answer = lambda number, question: (200, {}, completion("x" * (30 << 20)))
    assert failure(ask()) == "the reply is larger than 2 MiB"
    assert len(server.requests) == 1


def test_the_budget(server: Server, ask: Callable[..., Judge]) -> None:
    judge = ask(max_requests=3)
    assert [judge.ask(str(number)) for number in range(3)] == [f"reply to {number}" for number in range(3)]
    assert failure(judge) == "the budget rewards.judge.max_requests=3 is used up"
    assert len(server.requests) == 3
    judge = ask(max_total_tokens=15)
    assert judge.ask("a") and judge.ask("b")
    assert "max_total_tokens=15 is used up" in failure(judge)


def test_the_concurrency_limit_is_held(server: Server, ask: Callable[..., Judge]) -> None:
    def answer(number: int, question: str) -> str:
        time.sleep(0.05)
        return question

    server.answer = answer
    judge = ask(concurrency=3)
    waiting = [judge.submit(str(number)) for number in range(12)]
    assert [future.result() for future in waiting] == [str(number) for number in range(12)]
    assert server.most == 3


def test_equal_questions_are_one_request(server: Server, ask: Callable[..., Judge]) -> None:
    gate = threading.Event()
    server.answer = lambda number, question: gate.wait(5) and "good"
    judge = ask(tries=1)
    waiting = [judge.submit("same") for _ in range(8)]
    waiting[0].cancel()  # the others still get their reply
    gate.set()
    assert [future.result() for future in waiting[1:]] == ["good"] * 7
    assert len(server.requests) == 1 and judge.counters.shared == 7


def test_asyncio(server: Server, ask: Callable[..., Judge]) -> None:
    async def both() -> list[str]:
        judge = ask()
        return await asyncio.gather(*(asyncio.wrap_future(judge.submit(text)) for text in "ab"))

    assert asyncio.run(both()) == ["reply to a", "reply to b"]


def test_close_gives_up_what_is_under_way(server: Server, ask: Callable[..., Judge]) -> None:
    gate = threading.Event()
    server.answer = lambda number, question: gate.wait(5) and "late"
    judge = ask()
    waiting = judge.submit("q")
    while not server.requests:
        time.sleep(0.005)
    start = time.monotonic()
    judge.close()
    assert time.monotonic() - start < 1 and waiting.cancelled()
    assert failure(judge) == "it was closed"
    judge.close()
    gate.set()


def test_replies_are_kept_and_failures_are_not(server: Server, ask: Callable[..., Judge], tmp_path: Path) -> None:
    server.answer = lambda number, question: (400, {}, b"no") if number == 1 else f"reply {number}"
    judge = ask(cache=True)
    failure(judge)
    assert judge.ask("q") == judge.ask("q") == ask(cache=True, timeout=5).ask("q") == "reply 2"
    assert (judge.counters.cached, judge.counters.requests) == (1, 2)
    assert ask(cache=True, temperature=0.5).ask("q") == "reply 3"
    assert ask(cache=True, model="other").ask("q") == "reply 4"
    [path] = [path for path in (tmp_path / "judge").rglob("*.json") if json.loads(path.read_text())["reply"] == "reply 2"]
    path.write_text(path.read_text()[:40])  # torn by a power cut
    assert ask(cache=True).ask("q") == ask(cache=True).ask("q") == "reply 5"
    for number, damaged in enumerate((b"\xff", b"[" * 100_000, b'{"key": "another", "reply": "forged"}', b"[]"), 6):
        path.write_bytes(damaged)
        assert ask(cache=True).ask("q") == ask(cache=True).ask("q") == f"reply {number}"
    assert not list((tmp_path / "judge").rglob("*.tmp"))


def test_processes_share_the_cache(server: Server, ask: Callable[..., Judge], tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:] = {sys.path!r}
from evr1_core.config.rewards import JudgeSection
from evr1_core.scoring.judge import open_judge
with open_judge(JudgeSection(model="grader", url={server.url!r}, cache_dir={str(tmp_path / "judge")!r})) as judge:
    print(judge.ask("q"), judge.counters.cached)
"""
    first = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert first == "reply to q 0\n"
    assert ask(cache=True).ask("q") == "reply to q" and len(server.requests) == 1


def test_a_full_disk_costs_no_reply(server: Server, ask: Callable[..., Judge], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JudgeCache, "put", full)
    judge = ask(cache=True)
    assert judge.ask("q") == "reply to q" and judge.counters.cache_failed == 1


def test_a_cache_that_can_not_be_written_is_refused(ask: Callable[..., Judge], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match=r"rewards\.judge\.cache_dir"):
        ask(cache=True, cache_dir=tmp_path / "file" / "judge")


def test_the_key_goes_to_the_server_only(
    server: Server, ask: Callable[..., Judge], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("GRADER_KEY", KEY)
    server.answer = lambda number, question: "good" if number == 1 else (401, {}, f"wrong key {KEY}".encode())
    judge = ask(api_key_env="GRADER_KEY", cache=True)
    assert judge.ask("q") == "good" and failure(judge, "r") == "HTTP 401: wrong key ***"
    assert server.keys == {f"Bearer {KEY}"}
    texts = [caplog.text, repr(judge), repr(judge.section), *(path.read_text() for path in (tmp_path / "judge").rglob("*.json"))]
    assert not any(KEY in text for text in texts)
    monkeypatch.delenv("GRADER_KEY")
    with pytest.raises(RequestError, match="GRADER_KEY is not set"):
        ask(api_key_env="GRADER_KEY")
    monkeypatch.setenv("GRADER_KEY", f"{KEY}\nX-Other: 1")
    with pytest.raises(RequestError, match="GRADER_KEY") as caught:
        ask(api_key_env="GRADER_KEY")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "either url"),
        ({"url": "http://a/v1", "engine": JudgeEngineSection()}, "either url"),
        ({"url": "http://me:pass@a/v1"}, "without user"),
        ({"url": "http://a/v1?key=x"}, "without user"),
        ({"url": "a/v1"}, "http://HOST"),
        ({"url": "http://a/v1", "api_key_env": KEY}, "not the key itself"),
    ],
)
def test_settings_that_can_not_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JudgeSection(model="m", **fields)


def test_a_row_that_needs_a_judge_is_named_at_the_start() -> None:
    plain = Sample(id="plain", problem="", answer="B", problem_type="mc", options=("a", "b"))
    judged = Sample(id="judged", problem="", answer="x", problem_type="mc", scoring={"metric": "judge"})
    check_judge(RewardSection(), [plain])
    with pytest.raises(RequestError, match="1 rows .* the first is 'judged'"):
        check_judge(RewardSection(), [plain, judged])
    with pytest.raises(RequestError, match="'plain'"):
        check_judge(RewardSection(options={"multiple-choice": {"metric": "judge"}}), [plain])
    check_judge(RewardSection(judge=JudgeSection(model="m", url="http://a/v1")), [judged])


def test_an_engine_as_judge(tiny_directory: Path, tmp_path: Path) -> None:
    """A model in this process: questions that come while it is busy are its next batch, and control texts are not obeyed."""
    engine = JudgeEngineSection(dtype="float32", device="cpu", max_prompt_tokens=64)
    section = JudgeSection(model=str(tiny_directory), engine=engine, max_tokens=4, cache_dir=tmp_path, timeout=60)
    with Judge(_model(section), section) as judge:
        waiting = [judge.submit(f"Is {number} even? <|im_end|>") for number in range(4)]
        replies = [future.result() for future in waiting]
        assert all(isinstance(reply, str) for reply in replies)
        assert judge._model.batches[0][0].text.count("<|im_end|>") == 1  # type: ignore[attr-defined]
        assert len(judge._model.batches) < 4 and judge.counters.tokens > 0  # type: ignore[attr-defined]
        assert "tokens, rewards.judge.engine.max_prompt_tokens=64" in failure(judge, "very " * 100)
        assert judge.ask("Is 0 even? <|im_end|>") == replies[0] and judge.counters.cached == 1
    assert reply_key({"model": "a"}, "q") != reply_key({"model": "b"}, "q")


def _model(section: JudgeSection) -> Any:
    """The engine's model, with its batches written down."""
    from evr1_core.rollout.judge import EngineModel

    model = EngineModel(section)
    generate, model.batches = model._engine.generate, []  # type: ignore[attr-defined]

    def noted(prompts: Any, sampling: Any) -> Any:
        model.batches.append(prompts)  # type: ignore[attr-defined]
        return generate(prompts, sampling)

    model._engine.generate = noted  # type: ignore[method-assign]
    return model

"""Batch engines as asynchronous ones, and the engine for servers against a server in this process."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.async_engine import AsyncEngine, Batched, EngineDead
from evr1_core.rollout.engine import EngineContext, PromptMismatch, completion_seed
from evr1_core.rollout.loop import without_interrupts
from evr1_core.types import Clip, Completion, MediaRef, Prompt, Sample, Sampling
from evr1_engines.openai import Options, ServerEngine

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 3, 32, 48), dtype=np.uint8)


class Engine:
    weight_version = 0

    def __init__(self, bad: Sequence[str] = (), seconds: float = 0.02, asked: threading.Event | None = None) -> None:
        """`asked`: no batch is answered before it is set."""
        self.bad, self.seconds, self.asked = bad, seconds, asked
        self.batches: list[list[str]] = []
        self.closed = False

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Any]:
        names = [prompt.sample.id for prompt in prompts]
        self.batches.append(names)
        assert self.asked is None or self.asked.wait(60)
        time.sleep(self.seconds)
        if set(names) & set(self.bad):
            raise ValueError("bad prompt")
        return [
            PromptMismatch(name, "7 tokens, not 8") if name == "odd" else [Completion((1,), (), name, "stop")] * sampling.n
            for name in names
        ]

    def sleep(self) -> None: ...

    def load_weights(self, weights: Any, version: int) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def prompt(name: str, **parts: Any) -> Prompt:
    return Prompt(Sample(name, "?", "A", "choice"), (), "?", (1, 2), **parts)


def ask(engine: Any, prompts: Sequence[Prompt], sampling: Sampling | None = None) -> list[Any]:
    async def every() -> list[Any]:
        answers = [asyncio.ensure_future(engine.answer(one, sampling or Sampling())) for one in prompts]
        await asyncio.sleep(0)  # each of them has asked
        if asked := getattr(getattr(engine, "engine", None), "asked", None):
            asked.set()
        return await asyncio.gather(*answers, return_exceptions=True)

    return asyncio.run(every())


def test_prompts_that_wait_are_the_next_batch() -> None:
    engine = Engine(asked=threading.Event())
    batched = Batched(engine, batch=4)
    assert isinstance(batched, AsyncEngine) and not isinstance(engine, AsyncEngine)
    answers = ask(batched, [prompt(str(i)) for i in range(10)], Sampling(n=2))
    assert [[one.text for one in found] for found in answers] == [[str(i)] * 2 for i in range(10)]
    assert max(map(len, engine.batches)) == 4 and len(engine.batches) <= 4
    assert len(ask(batched, [prompt("x")])) == 1, "another event loop may use it"
    batched.close()
    assert engine.closed and isinstance(ask(batched, [prompt("x")])[0], EngineDead)


def test_a_batch_that_fails_is_asked_prompt_by_prompt() -> None:
    batched = Batched(Engine(bad=["2"], asked=threading.Event()), batch=4)
    # The first of them may go alone; those that are asked before it is answered go together.
    answers = ask(batched, [prompt(name) for name in ("0", "1", "2", "odd")])
    assert isinstance(answers[2], ValueError) and isinstance(answers[3], PromptMismatch) and answers[0][0].text == "0"
    assert len(batched.retries) == 1 and batched.retries[0].endswith("prompts at once: ValueError: bad prompt")
    batched.close()


def test_prompts_with_other_sampling_are_another_batch() -> None:
    engine = Engine()
    batched = Batched(engine, batch=8)

    async def both() -> None:
        await asyncio.gather(*(batched.answer(prompt(str(n)), Sampling(n=1 + n % 2)) for n in range(6)))

    asyncio.run(both())
    assert all(len({int(name) % 2 for name in names}) == 1 for names in engine.batches)
    batched.close()


def test_a_prompt_that_was_given_up_is_not_asked() -> None:
    engine = Engine(seconds=0.2)
    batched = Batched(engine, batch=1)

    async def give_up() -> None:
        first = asyncio.create_task(batched.answer(prompt("first"), Sampling()))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batched.answer(prompt("second"), Sampling()), 0.05)
        await first
        await batched.answer(prompt("third"), Sampling())

    asyncio.run(give_up())
    assert engine.batches == [["first"], ["third"]]
    batched.close()


def test_an_engine_that_stops_leaves_nobody_waiting() -> None:
    class Stopping(Engine):
        def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Any]:
            raise SystemExit("out of memory")

    batched = Batched(Stopping(), batch=1)
    assert [type(found) for found in ask(batched, [prompt("0"), prompt("1")])] == [EngineDead, EngineDead]
    batched.close()


class Server:
    """Answers with what `script` gives: (status, headers, body) or a body; keeps what it was sent."""

    def __init__(self, *script: Any) -> None:
        self.script, self.sent, self.keys = list(script), [], []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                outer.keys.append(self.headers.get("Authorization"))
                item = outer.script.pop(0) if len(outer.script) > 1 else outer.script[0]
                status, headers, body = item if isinstance(item, tuple) else (200, {}, item)
                content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def reply(text: str = "B", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **more.pop("message", {})}
    return {"choices": [{"message": message, "finish_reason": "stop", **more.pop("choice", {})}], **more}


@pytest.fixture
def opened() -> Iterator[Any]:
    """Opens servers with engines, closes them."""
    things: list[Any] = []

    def open_one(*script: Any, **options: Any) -> tuple[ServerEngine, Server]:
        server = Server(*script)
        adapter = SimpleNamespace(
            directory=Path("/models/tiny"),
            chat={},
            tokenize=lambda text: list(text.encode()),
            render=lambda messages: ("", "<think>\n"),
            video_metadata=lambda clip: {"fps": 2.0, "frames_indices": [0, 2, 4], "total_num_frames": 6, "duration": 3.0, "height": 32},
        )
        context = EngineContext(adapter, "float32", "cpu", 100, 10, 0)  # pyright: ignore[reportArgumentType]
        engine = ServerEngine(context, Options(url=server.url, **options))
        things.extend([engine, server])
        return engine, server

    yield open_one
    for thing in things:
        thing.close()


def test_ctrl_c_does_not_reach_the_processes_of_an_engine() -> None:
    code = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    with without_interrupts():
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set()), "this thread itself is interrupted as before"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM


def shown() -> Prompt:
    """A system turn, a video and a text."""
    clip = Clip(FRAMES, (0.0, 1.0, 2.0), (0, 2, 4), 2.0, 6, 3.0, 0, "d", "c", "key")
    content = [{"type": "video"}, {"type": "text", "text": "What?"}]
    messages = ({"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, {"role": "user", "content": content})
    sample = Sample("q", "What?", "B", "choice", (MediaRef("/x.mp4", "video"),))
    return Prompt(sample, messages, "<video>What?", (5, 6, 7), (clip,), {}, "<think>\n")


def test_a_server_is_shown_the_very_frames(opened: Any) -> None:
    engine, server = opened(reply("B"))
    [[one, two]] = ask(engine, [shown()], Sampling(n=2, temperature=0.0, max_tokens=9, seed=4))
    assert one.text == two.text == "B" and one.finish_reason == "stop" and one.token_ids == (66,) and not one.prompt_known
    system, user = server.sent[0]["messages"]
    assert system == {"role": "system", "content": "Be brief."} and user["content"][-1] == {"type": "text", "text": "What?"}
    pictures = [part["image_url"]["url"].removeprefix("data:image/png;base64,") for part in user["content"][:-1]]
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))).transpose(2, 0, 1) for picture in pictures])
    assert np.array_equal(decoded, FRAMES)
    assert server.sent[0]["model"] == "tiny" and server.sent[0]["max_tokens"] == 9
    assert {body["seed"] for body in server.sent} == {completion_seed(4, "q", 0), completion_seed(4, "q", 1)}


def test_a_vllm_server_gets_the_clock_and_its_prompt_is_compared(opened: Any) -> None:
    engine, server = opened(reply("B", choice={"token_ids": [9]}, prompt_token_ids=[5, 6, 7]), video="vllm")
    [[answer]] = ask(engine, [shown()])
    assert answer.token_ids == (9,) and answer.prompt_known
    [body] = server.sent
    assert body["media_io_kwargs"]["video"] == {
        "fps": 2.0, "frames_indices": [0, 2, 4], "total_num_frames": 6, "duration": 3.0, "do_sample_frames": False
    }  # fmt: skip
    assert body["messages"][1]["content"][0]["video_url"]["url"].startswith("data:video/jpeg;base64,")
    assert body["mm_processor_kwargs"] == {"do_resize": False, "do_sample_frames": False} and body["return_token_ids"]
    engine, _ = opened(reply("B", prompt_token_ids=[5, 6]), video="vllm")
    assert isinstance(ask(engine, [shown()])[0], PromptMismatch)


def test_faults_that_may_pass_are_tried_again(opened: Any) -> None:
    engine, server = opened((503, {"Retry-After": "0.01"}, "busy"), (429, {"Retry-After": "0.01"}, {"error": "slow down"}), reply("B"))
    assert ask(engine, [prompt("q")])[0][0].text == "B" and len(server.sent) == 3
    engine, server = opened((503, {"Retry-After": "0.01"}, "busy"), tries=2)
    [fault] = ask(engine, [prompt("q")])
    assert isinstance(fault, Evr1Error) and "no answer after 2 tries, last HTTP 503: busy" in str(fault) and len(server.sent) == 2


def test_faults_that_will_not_pass_are_not(opened: Any) -> None:
    engine, server = opened((400, {}, "the prompt is too long"))
    [fault] = ask(engine, [prompt("q")])
    assert type(fault) is Evr1Error and "too long" in str(fault) and len(server.sent) == 1
    for status in (401, 404):
        engine, _ = opened((status, {}, "no"))
        assert isinstance(ask(engine, [prompt("q")])[0], RequestError)
    engine, _ = opened(reply("", choice={"finish_reason": "content_filter"}))
    assert "content_filter" in str(ask(engine, [prompt("q")])[0])
    engine, _ = opened({"nothing": 1})
    assert "choices[0].message" in str(ask(engine, [prompt("q")])[0])


def test_the_key_is_in_one_header_alone(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match="NO_SUCH_KEY does not hold a key"):
        opened(reply(), api_key_env="NO_SUCH_KEY")
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    engine, server = opened((400, {}, "wrong key sk-secret"), api_key_env="SOME_KEY")
    [fault] = ask(engine, [prompt("q")])
    assert server.keys == ["Bearer sk-secret"] and "sk-secret" not in str(fault) and "***" in str(fault)
    assert "sk-secret" not in repr(engine.options)
    with pytest.raises(RequestError, match="without user or password"):
        ServerEngine(EngineContext(None, "", "cpu", 1, 1, 0), Options.model_validate({"url": "https://user:word@host/v1"}))  # pyright: ignore[reportArgumentType]


def test_thoughts_that_a_server_takes_apart_are_put_back(opened: Any) -> None:
    engine, _ = opened(reply("B", message={"reasoning": "hm"}))
    assert ask(engine, [prompt("q")])[0][0].text == "<think>hm</think>B"
    assert ask(engine, [shown()])[0][0].text == "hm</think>B"


def test_a_prompt_that_opens_the_answer_needs_a_server_that_can_go_on(opened: Any) -> None:
    opening = Prompt(shown().sample, shown().messages, "", (), shown().clips, {}, "<think>\nBest option: (")
    engine, _ = opened(reply())
    assert "only a vLLM server" in str(ask(engine, [opening])[0])
    engine, server = opened(reply(), video="vllm")
    ask(engine, [opening])
    assert server.sent[0]["messages"][-1] == {"role": "assistant", "content": "Best option: ("}
    assert server.sent[0]["continue_final_message"] and server.sent[0]["add_generation_prompt"] is False


def test_arguments_of_the_chat_template_go_to_servers_that_take_them(opened: Any) -> None:
    told = {"enable_thinking": False}
    for options in ({"video": "vllm"}, {"extra": {"chat_template_kwargs": told}}):
        engine, server = opened(reply(), **options)
        engine.adapter.chat = told
        ask(engine, [shown()])
        assert server.sent[0]["chat_template_kwargs"] == told
    engine, _ = opened(reply())
    engine.adapter.chat = told
    assert "model.chat is for servers that take chat_template_kwargs" in str(ask(engine, [shown()])[0])

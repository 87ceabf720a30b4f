"""Evaluation against a server that speaks OpenAI's chat API: `POST {url}/chat/completions`.

The server holds the model and makes the prompt, from the messages and the very frames that every other engine is shown. How a
video is sent is up to the server:
- `frames`: one picture after the other; any server takes that. A model that knows videos sees pictures instead, without a clock.
- `vllm`: a vLLM server takes the frames with their clock as one video, is told not to sample or resize them again, and says
  which prompt ids it made: they are compared with ours, as in the other engines.

The key comes from the environment and goes into one header: it is in no file, no message and no result.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from PIL import Image
from pydantic import Field

from evr1_core.config.models import Section
from evr1_core.errors import Evr1Error, RequestError
from evr1_core.rollout.engine import EngineContext, completion_seed
from evr1_core.rollout.loop import LoopThread
from evr1_core.types import Clip, Completion, Prompt, Sampling
from evr1_engines.vllm_requests import prompt_mismatch

MAY_PASS = {408, 409, 425, 429}
"""HTTP statuses, beside 500 and above, after which the same request may succeed."""
WRONG = {401, 403, 404, 405}
"""HTTP statuses that every other request would get too."""
CLOCK = ("fps", "frames_indices", "total_num_frames", "duration")
"""What a vLLM server reads about frames that are sent to it."""


class Options(Section):
    """Options of the engine for servers that speak OpenAI's chat API."""

    url: str = "http://localhost:8000/v1"
    """Address of the API; `/chat/completions` is added."""
    model: str | None = None
    """Name of the model on the server; null is the last part of `model.path`."""
    api_key_env: str | None = None
    """Environment variable that holds the key."""
    video: Literal["frames", "vllm"] = "frames"
    """How videos are sent: as pictures, or as vLLM's own form of frames with a clock (then the server is a vLLM server)."""
    picture: Literal["png", "jpeg"] = "png"
    """Encoding of pictures and frames: png loses nothing, jpeg (quality 95) is several times smaller."""
    concurrency: int = Field(32, ge=1)
    """Requests under way."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that one try may take."""
    tries: int = Field(5, ge=1)
    """Tries of one request, where the fault may pass."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request's body, for example `{top_p: 0.8}`."""


class ServerEngine:
    """AsyncEngine on an HTTP server."""

    def __init__(self, context: EngineContext, options: Options) -> None:
        """Raises RequestError for a key that is not there, a url that holds one, or a missing HTTP library."""
        try:
            import httpx
        except ImportError as error:
            raise RequestError("engine openai needs httpx, which is not installed: pip install httpx") from error
        address = urlsplit(options.url)
        if address.username or address.password or address.scheme not in ("http", "https"):
            raise RequestError("rollout.options.url must be http(s)://HOST/..., without user or password; a key comes from api_key_env")
        self.adapter, self.options, self.width = context.adapter, options, options.concurrency
        self.model = options.model or context.adapter.directory.name
        self._url = f"{options.url.rstrip('/')}/chat/completions"
        self._key = read_key(options.api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.AsyncClient(
            headers=headers, timeout=options.timeout, limits=httpx.Limits(max_connections=options.concurrency + 8)
        )
        self._loop = LoopThread("evr1-server")

    async def answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        return await self._loop.run(self._answer(prompt, sampling))

    def close(self) -> None:
        self._loop.call(self._client.aclose())
        self._loop.close()

    async def _answer(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        body = await asyncio.to_thread(self.body, prompt, sampling)
        seeds = [completion_seed(sampling.seed, prompt.sample.id, index) for index in range(sampling.n)]
        replies = await asyncio.gather(*(self._post({**body, "seed": seed}) for seed in seeds))
        return [self._completion(prompt, reply) for reply in replies]

    def body(self, prompt: Prompt, sampling: Sampling) -> dict[str, Any]:
        """The request but for its seed."""
        vllm = self.options.video == "vllm"
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(self._messages(prompt)),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        if vllm:
            body |= {
                "return_token_ids": True,
                "mm_processor_kwargs": {"do_resize": False},
                "top_p": 1.0,
                "top_k": 0,
                "repetition_penalty": 1.0,
            }
            videos = [clip for clip in prompt.clips if clip.kind == "video"]
            if len(videos) > 1:
                raise Evr1Error("a vLLM server takes one clock for all videos of a request; rollout.options.video=frames sends pictures")
            for clip in videos:
                told = self.adapter.video_metadata(clip)
                body["media_io_kwargs"] = {"video": {**{name: told[name] for name in CLOCK}, "do_sample_frames": False}}
                body["mm_processor_kwargs"]["do_sample_frames"] = False
        if self.adapter.chat:
            if not vllm and "chat_template_kwargs" not in self.options.extra:
                raise RequestError(
                    "model.chat is for servers that take chat_template_kwargs: rollout.options.video=vllm, or the same values under "
                    "rollout.options.extra.chat_template_kwargs"
                )
            body["chat_template_kwargs"] = dict(self.adapter.chat)
        if opening := self._opening(prompt):
            if not vllm:
                raise RequestError(
                    "this prompt opens the assistant's turn with a text of its own, which only a vLLM server can go on from: "
                    "rollout.options.video=vllm, or another --prompt"
                )
            body["messages"].append({"role": "assistant", "content": opening})
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        return body | self.options.extra

    def _opening(self, prompt: Prompt) -> str:
        """What the wording adds to the beginning that the chat template gives the assistant's turn: the server adds the latter itself."""
        own = self.adapter.render(prompt.messages)[1] if prompt.prefill else ""
        return prompt.prefill[len(own) :]

    def _messages(self, prompt: Prompt) -> Iterator[dict[str, Any]]:
        clips = iter(prompt.clips)
        for message in prompt.messages:
            content = message["content"]
            items = [{"type": "text", "text": content}] if isinstance(content, str) else content
            parts = [part for item in items for part in ([item] if item["type"] == "text" else self._shown(next(clips)))]
            if message["role"] == "system":
                yield {"role": "system", "content": "".join(part["text"] for part in parts)}
            else:
                yield {"role": message["role"], "content": parts}

    def _shown(self, clip: Clip) -> Iterator[dict[str, Any]]:
        pictures = (encoded(frame, self.options.picture) for frame in clip.frames)
        if clip.kind == "video" and self.options.video == "vllm":
            yield {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{','.join(pictures)}"}}
            return
        for picture in pictures:
            yield {"type": "image_url", "image_url": {"url": f"data:image/{self.options.picture};base64,{picture}"}}

    async def _post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The reply. A fault that may pass is tried again, later each time (or when the server says)."""
        import httpx

        why = ""
        for attempt in range(self.options.tries):
            wait = min(60.0, 2.0**attempt) * random.uniform(0.5, 1.0)
            try:
                response = await self._client.post(self._url, json=body)
                if response.status_code == 200:
                    return json.loads(response.content)
                why = self._safe(f"HTTP {response.status_code}: {response.text[:200]}")
                if response.status_code in WRONG:
                    raise RequestError(f"{self._url} refuses: {why}; look at rollout.options.url, model and api_key_env")
                if response.status_code < 500 and response.status_code not in MAY_PASS:
                    raise Evr1Error(why)
                wait = seconds(response.headers.get("Retry-After")) or wait
            except (httpx.HTTPError, ValueError) as fault:  # no connection, a broken one, a reply that is no JSON
                why = self._safe(f"{type(fault).__name__}: {fault}")
            if attempt + 1 < self.options.tries:
                await asyncio.sleep(wait)
        raise Evr1Error(f"no answer after {self.options.tries} tries, last {why}")

    def _completion(self, prompt: Prompt, reply: Mapping[str, Any]) -> Completion:
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text, reasoning = message.get("content") or "", message.get("reasoning") or message.get("reasoning_content") or ""
        except (LookupError, TypeError, AttributeError):
            raise Evr1Error(self._safe(f"the reply has no choices[0].message: {json.dumps(reply)[:200]}")) from None
        if reply.get("prompt_token_ids") is not None and (mismatch := prompt_mismatch(prompt, reply["prompt_token_ids"])):
            raise mismatch
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise Evr1Error(f"the server ended the answer with finish_reason {reason!r}")
        if reasoning:  # a server that takes thoughts and answer apart
            text = f"{'' if '<think>' in prompt.prefill else '<think>'}{reasoning}</think>{text}"
        ids = choice.get("token_ids")
        tokens = tuple(self.adapter.tokenize(text) if ids is None else ids)
        return Completion(tokens, (), text, reason, prompt_known=reply.get("prompt_token_ids") is not None)

    def _safe(self, text: str) -> str:
        """One line in which the key is not, even if the server repeats it."""
        text = text.replace(self._key, "***") if self._key else text
        return " ".join(text.split())[:300]


def read_key(name: str | None) -> str:
    """The key in an environment variable. Raises RequestError, without the value, where there is none."""
    key = os.environ.get(name, "").strip() if name else ""
    if name and (not key or not key.isascii() or " " in key):
        raise RequestError(f"rollout.options.api_key_env: the environment variable {name} does not hold a key")
    return key


def encoded(frame: Any, kind: str) -> str:
    """A frame [3, H, W] as a picture in base64."""
    target = io.BytesIO()
    Image.fromarray(frame.transpose(1, 2, 0)).save(target, kind.upper(), **({"quality": 95} if kind == "jpeg" else {"compress_level": 1}))
    return base64.b64encode(target.getvalue()).decode()


def seconds(header: str | None) -> float | None:
    """Of a `Retry-After` header that gives a number, at most a minute."""
    try:
        return min(60.0, max(0.0, float(header))) if header else None
    except ValueError:
        return None

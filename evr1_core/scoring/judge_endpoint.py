"""A judge behind an OpenAI-compatible endpoint: `POST {url}/chat/completions`.

The key comes from the environment and goes into one header. It is in no configuration, no message and no stored reply.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from evr1_core.config.rewards import JudgeSection
from evr1_core.errors import RequestError
from evr1_core.scoring.judge import Passing, Reply, unavailable

if TYPE_CHECKING:
    import httpx

MAX_REPLY_BYTES = 2 << 20
"""Nothing beyond is read: the length that was asked for is `max_tokens`."""
_MAY_PASS = {408, 409, 425, 429}
"""HTTP statuses, beside 500 and above, after which the same request may succeed."""


class EndpointModel:
    """One client with as many connections as questions may be under way."""

    def __init__(self, section: JudgeSection) -> None:
        """Raises RequestError when the key or the HTTP library is missing, or no client can be made of the url and the environment."""
        try:
            import httpx
        except ImportError as error:
            raise RequestError("rewards.judge.url needs httpx, which is not installed: pip install 'evr1[rewards]'") from error
        assert section.url is not None
        self._url = f"{section.url.rstrip('/')}/chat/completions"
        self._key = api_key(section.api_key_env)
        body = {"model": section.model, "temperature": section.temperature, "max_tokens": section.max_tokens, **section.extra}
        self.identity: Mapping[str, Any] = {name: value for name, value in body.items() if value is not None}
        try:
            httpx.URL(self._url).host  # noqa: B018 - reading it decodes the name
            self._client = httpx.AsyncClient(
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                limits=httpx.Limits(max_connections=section.concurrency),
                timeout=section.timeout,
            )
        except (httpx.InvalidURL, ImportError, ValueError, OSError) as error:
            why = "" if isinstance(error, httpx.InvalidURL) else f": {error}"  # it may quote a proxy's password
            raise RequestError(
                f"rewards.judge.url {section.url}: no HTTP client can be made ({type(error).__name__}{why}); look at the url, the proxies "
                "in the environment (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY) and SSL_CERT_FILE"
            ) from error

    async def reply(self, prompt: str) -> Reply:
        import httpx

        body = {**self.identity, "messages": [{"role": "user", "content": prompt}]}
        try:
            async with self._client.stream("POST", self._url, json=body) as response:
                content = await _read(response)
        except httpx.HTTPError as fault:  # no connection, a broken one, an answer that is no HTTP
            raise Passing(self._safe(f"{type(fault).__name__}: {fault}")) from None
        if response.status_code != 200:
            why = self._safe(f"HTTP {response.status_code}: {_moved(response) or _detail(content)}")
            if response.status_code in _MAY_PASS or response.status_code >= 500:
                raise Passing(why, _retry_after(response.headers.get("Retry-After")))
            raise unavailable(why)
        try:
            return _parse(content)
        except Passing as fault:
            raise Passing(self._safe(fault.why)) from None

    async def close(self) -> None:
        await self._client.aclose()

    def _safe(self, text: str) -> str:
        """One line in which the key is not, even if the server repeats it."""
        text = text.replace(self._key, "***") if self._key else text
        return " ".join(text.split())[:240]


def api_key(name: str | None) -> str:
    """The key in an environment variable, "" for no variable. Raises RequestError, without the value, where there is none."""
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise RequestError(f"rewards.judge.api_key_env: the environment variable {name} is not set; put the judge's key into it")
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise RequestError(
            f"rewards.judge.api_key_env: the environment variable {name} does not hold a key: it has blanks or strange characters"
        )
    return key


async def _read(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > MAX_REPLY_BYTES:
            raise unavailable(f"the reply is larger than {MAX_REPLY_BYTES >> 20} MiB")
    return bytes(content)


def _parse(content: bytes) -> Reply:
    """The text of the first choice. A reply without text is a fault, not an empty verdict."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise Passing(f"the reply is no JSON: {content[:60]!r}") from None
    try:
        text = found["choices"][0]["message"]["content"]
    except (TypeError, LookupError):
        raise Passing(f"the reply has no choices[0].message.content: {_detail(content)}") from None
    if not isinstance(text, str) or not text.strip():
        raise Passing("the reply has no text")
    usage = found.get("usage")
    tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
    return Reply(text, tokens if isinstance(tokens, int) and tokens > 0 else 0)


def _moved(response: httpx.Response) -> str:
    """A redirect would take the key to an address that nobody gave."""
    place = response.headers.get("Location")
    return f"redirects are not followed; rewards.judge.url may have to be {place}" if response.is_redirect and place else ""


def _detail(content: bytes) -> str:
    """What the server says about an error: `error.message` of its JSON, else its first characters."""
    try:
        found = json.loads(content)
        return str(found["error"]["message"])[:200]
    except (ValueError, RecursionError, TypeError, LookupError):
        return content[:200].decode("utf-8", "replace")


def _retry_after(header: str | None) -> float | None:
    """Seconds to wait: the header gives a number or a date (RFC 9110, section 10.2.3)."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())

"""Streamed answers of /v1/completions, as a client reads them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp

from tests.e2e.cluster import MODEL

PATIENCE_S = 120


async def chunks(
    session: aiohttp.ClientSession,
    url: str,
    asked: Sequence[int],
    length: int,
    name: str | None = None,
    model: str = MODEL,
) -> AsyncGenerator[dict[str, Any]]:
    """The events of a greedy answer of so many tokens, none of them an error."""
    body = {
        "model": model,
        "prompt": list(asked),
        "max_tokens": length,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    headers = {} if name is None else {"X-Request-Id": name}
    timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
    post = session.post(f"{url}/v1/completions", json=body, headers=headers, timeout=timeout)
    async with post as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunk: dict[str, Any] = json.loads(line[6:])
                assert "error" not in chunk, chunk
                yield chunk


async def streamed(
    session: aiohttp.ClientSession,
    url: str,
    asked: Sequence[int],
    length: int,
    begun: asyncio.Event,
    name: str | None = None,
) -> list[int]:
    """Its tokens; `begun` is set with the first of them."""
    said = list[int]()
    async with aclosing(chunks(session, url, asked, length, name)) as coming:
        async for chunk in coming:
            said += [one for each in chunk["choices"] for one in each["token_ids"] or []]
            begun.set()
    return said


async def streamed_past_half(
    session: aiohttp.ClientSession,
    url: str,
    asked: Sequence[int],
    length: int,
    halfway: asyncio.Semaphore,
    model: str = MODEL,
) -> list[int]:
    """Its tokens; `halfway` is released when half of them are here."""
    said, told = list[int](), False
    async with aclosing(chunks(session, url, asked, length, model=model)) as coming:
        async for chunk in coming:
            said += [one for each in chunk["choices"] for one in each["token_ids"] or []]
            if len(said) >= length // 2 and not told:
                told = True
                halfway.release()
    return said

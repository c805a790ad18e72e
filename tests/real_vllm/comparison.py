"""The same question to two servers, and what differs in their answers."""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.cluster import MODEL

NEAR = 0.01  # of log-probabilities: float32, added up in another order
IN_ITS_MIDDLE = 15  # events of a stream
TRIES, UNAVAILABLE = 3, 503  # busy workers starve all else on few cores for half a minute
OURS = {"id", "created", "object", "system_fingerprint", "service_tier", "pdserve"}
Question = tuple[str, Mapping[str, Any]]
Deed = Callable[[], Awaitable[None]]


@dataclass
class Comparison:
    """Asks vLLM's nodes and ours, and says of each question whether the answers are alike."""

    session: aiohttp.ClientSession
    theirs: str
    ours: str
    began: float = field(default_factory=time.monotonic)
    differ: int = 0

    async def ask(self, name: str, question: Question, deed: Deed | None = None) -> None:
        """Ask both; `deed` is done in the middle of the stream of vLLM's nodes."""
        path, fields = question
        told = await self._answer(f"{self.theirs}{path}", fields, deed)
        wanted = await self._answer(f"{self.ours}{path}", fields)
        same = _alike(told, wanted)
        self.differ += not same
        end = "the same" if same else f"{told}\n  and not {wanted}"
        sys.stdout.write(f"{time.monotonic() - self.began:5.0f} s, {name}: {end}\n")
        sys.stdout.flush()

    async def _answer(
        self, url: str, fields: Mapping[str, Any], deed: Deed | None = None
    ) -> dict[str, Any]:
        """What is to be compared of an answer; of a stream its text, ends and usage."""
        body = {"model": MODEL, "temperature": 0, **fields}
        told = dict[str, Any]()
        for _ in range(TRIES):
            async with self.session.post(url, json=body) as answer:
                if fields.get("stream"):
                    return await _streamed(answer, deed)
                told = {"status": answer.status, **_told(await answer.json())}
            if answer.status != UNAVAILABLE:
                break
        return told


async def _streamed(answer: aiohttp.ClientResponse, deed: Deed | None) -> dict[str, Any]:
    text, ends, usage, events = "", list[object](), None, 0
    task: asyncio.Future[None] | None = None
    async for line in answer.content:
        if not line.startswith(b"data: {"):
            continue
        said = json.loads(line.removeprefix(b"data: "))
        usage, events = said.get("usage") or usage, events + 1
        for choice in said.get("choices", ()):
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        ends += [said["error"]] if "error" in said else []
        if deed is not None and task is None and events >= IN_ITS_MIDDLE:
            task = asyncio.ensure_future(deed())
    if task is not None:
        await task
    return {"text": text, "ends": ends, "tokens": usage and usage["completion_tokens"]}


def _told(said: dict[str, Any]) -> dict[str, Any]:
    """Without what belongs to one answer alone."""
    used = said.get("usage") or {}
    counts = {key: used.get(key) for key in ("prompt_tokens", "completion_tokens")}
    return {**{key: one for key, one in said.items() if key not in OURS}, "usage": counts}


def _alike(one: Any, other: Any) -> bool:  # noqa: ANN401  JSON
    """Equal, but for the last digits of numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < NEAR
    return bool(one == other)

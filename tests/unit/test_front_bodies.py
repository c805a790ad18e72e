"""The front takes bodies as they come, and at no more than they weigh."""

import asyncio
from collections.abc import Mapping
from typing import Any

from api.door.limiter import LARGEST_BODY
from api.endpoints import HttpCall
from api.envelopes import AnswerWriter
from api.errors import BadRequest
from proxy.serving.front import AsgiHeaders, TextFront

PIECE = b"x" * 256
PATIENCE_S = 10.0


class Nobody:
    """Lets everybody in, and counts nothing."""

    def on_request(self, path: str, headers: AsgiHeaders) -> None:
        pass

    def on_answer(self, path: str, status: int, outer_id: str | None) -> Mapping[str, str]:
        return {}

    def stream_comment(self, headers: AsgiHeaders) -> bytes:
        return b""


async def test_a_body_in_many_small_pieces_costs_no_more_than_one_in_few() -> None:
    """To copy all that came before with each piece would take minutes."""
    left, sizes = LARGEST_BODY // len(PIECE), list[int]()

    async def receive() -> dict[str, Any]:
        nonlocal left
        await asyncio.sleep(0)
        left -= 1
        return {"type": "http.request", "body": PIECE, "more_body": left > 0}

    async def send(_: Mapping[str, Any]) -> None:
        pass

    async def endpoint(call: HttpCall) -> AnswerWriter:
        sizes.append(len(call.data))
        raise BadRequest("it was read")

    async def app(*_: object) -> None:
        raise AssertionError

    front = TextFront(app, {"/v1/completions": endpoint}, Nobody())
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    async with asyncio.timeout(PATIENCE_S):
        await front(scope, receive, send)
    assert sizes == [LARGEST_BODY]

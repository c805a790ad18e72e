"""KV that was to be fetched by a call that no leg came of is given up at once.

That is a call that is refused for good, with a mistake in it or for a model that is not here,
or whose client left before the engine had heard of it. Then nobody else knows the ticket, and
the prefill node would keep the KV until its lease ends. So it does where the ticket cannot be
known here either: the body did not come to its end, or cannot be read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from quart import Response, request

from api.bodies import MOST_CHOICES
from api.body_limits import refuse_crowded
from api.endpoints import REQUEST_ID
from api.errors import BadRequest
from api.generate import read_leg
from api.generator import BAD_REQUEST, WHOLE, Leg
from api.prompts import prompts_of
from api.text_requests import MOST_CALLS
from api.wire import UNREADABLE, WireError
from kv_transfer.errors import MalformedTicket
from node.legs import LegFinder

NOT_FOUND = 404


class _Body(msgspec.Struct):
    kv_transfer_params: dict[str, Any] | None = None
    request_id: Any = None
    prompt: Any = None
    n: Any = None

    @property
    def num_choices(self) -> int:
        """How many choices the call asks for: a refused one may have anything as `n`."""
        n = self.n if isinstance(self.n, int) and 1 <= self.n <= MOST_CHOICES else 1
        try:
            listed = isinstance(self.prompt, list)
            prompts = prompts_of(self.prompt, "prompt", MOST_CALLS) if listed else ()
        except BadRequest:
            return n
        return min(max(len(prompts), 1) * n, MOST_CALLS)


@dataclass(frozen=True, slots=True)
class RefusedLegs:
    """Looks at such a call once more, of any endpoint; `decline` tells the engine.

    The engine ignores that if a leg of the call has come meanwhile.
    """

    legs: LegFinder
    decline: Callable[[Leg], Awaitable[None]]

    async def give_up(self, response: Response) -> Response:
        """To be called after each request; returns the response as it is."""
        status, is_endpoint = response.status_code, request.url_rule is not None
        if status == BAD_REQUEST or (status == NOT_FOUND and is_endpoint):
            await self._give_up_asked()
        return response

    async def give_up_left(self, error: BaseException | None) -> None:
        """To be called at the end of each request, with what ended it: a client's leaving
        cancels it, unless its response has begun.
        """
        if isinstance(error, asyncio.CancelledError) and request.url_rule is not None:
            await self._give_up_asked()

    async def give_up_of(self, body: Mapping[str, object]) -> None:
        """The same for a call that did not come by HTTP, and that this body would ask for."""
        await self._give_up(msgspec.convert(body, _Body), None)

    async def _give_up_asked(self) -> None:
        """What the body of this request asks for, as far as it has come."""
        try:
            async with asyncio.timeout(0):  # the rest of a body may never come
                body = cast("bytes", await request.get_data(as_text=False))
            refuse_crowded(body)
            read = msgspec.json.decode(body, type=_Body)
        except (TimeoutError, WireError, *UNREADABLE):
            return
        await self._give_up(read, request.headers.get(REQUEST_ID))

    async def _give_up(self, body: _Body, outer_id: str | None) -> None:
        for leg in self._legs(body, outer_id):
            if leg.ticket is not None:
                await self.decline(leg)

    def _legs(self, body: _Body, outer_id: str | None) -> Sequence[Leg]:
        """The first choice's, or where a request id names KV, one of each choice."""
        try:
            leg = read_leg(body.kv_transfer_params)
        except MalformedTicket:
            return ()
        name = outer_id or body.request_id
        if leg != WHOLE or not isinstance(name, str):
            return (leg,)
        return [self.legs.of_request_id(name, index) for index in range(body.num_choices)]

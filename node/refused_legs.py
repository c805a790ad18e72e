"""KV that was to be fetched by a call that is refused for good is given up at once.

That is a call with a mistake in it, or for a model that is not here.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from quart import Response, request

from api.endpoints import REQUEST_ID
from api.generate import read_leg
from api.generator import BAD_REQUEST, WHOLE, Leg
from api.wire import UNREADABLE
from kv_transfer.errors import MalformedTicket
from node.legs import LegFinder

NOT_FOUND = 404


class _Body(msgspec.Struct):
    kv_transfer_params: dict[str, Any] | None = None
    request_id: Any = None


@dataclass(frozen=True, slots=True)
class RefusedLegs:
    """Looks at each refused call once more, of any endpoint; `decline` tells the engine."""

    legs: LegFinder
    decline: Callable[[Leg], Awaitable[None]]

    async def give_up(self, response: Response) -> Response:
        """To be called after each request; returns the response as it is."""
        status, is_endpoint = response.status_code, request.url_rule is not None
        if status == BAD_REQUEST or (status == NOT_FOUND and is_endpoint):
            body = await request.get_data(as_text=False)
            leg = self._leg(body, request.headers.get(REQUEST_ID))
            if leg.ticket is not None:
                await self.decline(leg)
        return response

    def _leg(self, data: str | bytes, outer_id: str | None) -> Leg:
        try:
            body = msgspec.json.decode(data, type=_Body)
            leg = read_leg(body.kv_transfer_params)
        except (*UNREADABLE, MalformedTicket):
            return WHOLE
        name = outer_id or body.request_id
        if leg != WHOLE or not isinstance(name, str):
            return leg
        return self.legs.of_request_id(name)

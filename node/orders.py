"""The node's door for its operators' orders, which proxies bring."""

import time
from dataclasses import dataclass

import msgspec
from quart import Blueprint, Response, request

from discovery.errors import MalformedOrder, MalformedRegistration, OrderRefused
from discovery.orders import LONGEST_ORDER, PATH, SENDER, Order, from_order
from discovery.registration import unpack
from discovery.signature import Verifier
from node.duty import Duty

BAD_REQUEST, CONFLICT = 400, 409
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class OrderDoor:
    """With a cluster's key it obeys only who signs with it; without one, whoever gets here."""

    duty: Duty
    verifier: Verifier | None = None

    @classmethod
    def of(cls, duty: Duty, cluster_key: str | None) -> "OrderDoor":
        """The door of a node with this key."""
        return cls(duty, Verifier(cluster_key.encode(), SENDER) if cluster_key else None)

    def blueprint(self) -> Blueprint:
        """Its one route."""
        routes = Blueprint("orders", __name__)
        routes.post(PATH)(self.order)
        return routes

    async def order(self) -> Response:
        """One order, obeyed or refused."""
        body = await request.get_data(as_text=False)
        assert isinstance(body, bytes)
        try:
            standing = self.duty.obey(self._read(body))
        except (MalformedOrder, MalformedRegistration) as error:
            return _said({"message": str(error)}, BAD_REQUEST)
        except OrderRefused as refusal:
            return _said({"message": str(refusal)}, CONFLICT)
        return _said(standing)

    def _read(self, body: bytes) -> Order:
        if len(body) > LONGEST_ORDER:
            raise MalformedOrder(f"{len(body)} bytes")
        message = unpack(body)
        if self.verifier:
            self.verifier.check(message, wall_time=time.time())
        return from_order(message)


def _said(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, content_type=JSON)

"""The HTTP route for operators' orders, which proxies pass on to the node."""

import time
from dataclasses import dataclass

import msgspec
from quart import Blueprint, Response, request

from discovery.errors import MalformedOrder, MalformedRegistration, OrderRefused
from discovery.orders import LONGEST_ORDER, PATH, SENDER, NodeOrder, from_order
from discovery.registration import unpack
from discovery.signature import Verifier
from node.role_controller import RoleController

BAD_REQUEST, CONFLICT = 400, 409
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class OrderRoute:
    """With a cluster key only signed orders are executed; without one, all orders are."""

    controller: RoleController
    verifier: Verifier | None = None

    @classmethod
    def of(cls, controller: RoleController, cluster_key: str | None) -> "OrderRoute":
        """The route of a node with this cluster key."""
        return cls(controller, Verifier(cluster_key.encode(), SENDER) if cluster_key else None)

    def blueprint(self) -> Blueprint:
        """The route as a Quart blueprint."""
        routes = Blueprint("orders", __name__)
        routes.post(PATH)(self.order)
        return routes

    async def order(self) -> Response:
        """Execute or refuse one order."""
        body = await request.get_data(as_text=False)
        assert isinstance(body, bytes)
        try:
            result = self.controller.execute(self._read(body))
        except (MalformedOrder, MalformedRegistration) as error:
            return _json({"message": str(error)}, BAD_REQUEST)
        except OrderRefused as refusal:
            return _json({"message": str(refusal)}, CONFLICT)
        return _json(result)

    def _read(self, body: bytes) -> NodeOrder:
        if len(body) > LONGEST_ORDER:
            raise MalformedOrder(f"{len(body)} bytes")
        message = unpack(body)
        if self.verifier:
            self.verifier.check(message, wall_time=time.time())
        return from_order(message)


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, content_type=JSON)

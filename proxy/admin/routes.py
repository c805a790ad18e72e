"""The operators' routes: nodes by hand, and what is done with each."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from proxy.admin.operating import Operator, read_wish
from proxy.nodes.instances import Instances, read_instance

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class AdminRoutes:
    """Whoever gets here has shown an administrator's key; `status` is what /status tells."""

    instances: Instances
    operator: Operator
    status: Callable[[], Awaitable[dict[str, Any]]]

    def blueprint(self) -> Blueprint:
        """All of them."""
        routes = Blueprint("admin", __name__, url_prefix="/instances")
        routes.get("")(self.show_all)
        routes.post("/add")(self.add)
        routes.post("/remove")(self.remove)
        routes.delete("")(self.remove)
        routes.get("/<name>")(self.show)
        routes.delete("/<name>")(self.remove_one)
        routes.post("/<name>/drain")(self.drain)
        routes.post("/<name>/undrain")(self.undrain)
        routes.post("/<name>/role")(self.change_role)
        return routes

    async def show_all(self) -> Response:
        """Every node that is known, as in /status."""
        return _json({"instances": (await self.status())["nodes"]})

    async def show(self, name: str) -> Response:
        """One of them."""
        address = self.operator.find(name).registration.http_address
        known = {one["http_address"]: one for one in (await self.status())["nodes"]}
        return _json(known[address])

    async def add(self) -> Response:
        """A node that does not announce itself."""
        instance = read_instance(await _body())
        await self.instances.add(instance)
        kind = instance.role.name.lower()
        return _json({"message": f"Added {instance.address} to {kind}_instances."})

    async def remove(self) -> Response:
        """One that was added so, by the same body."""
        instance = read_instance(await _body())
        await self.instances.remove(instance)
        kind = instance.role.name.lower()
        return _json({"message": f"Removed {instance.address} from {kind}_instances."})

    async def remove_one(self, name: str) -> Response:
        """The same by its name."""
        address = self.operator.find(name).registration.http_address
        await self.instances.forget(address)
        return _json({"message": f"Removed {address}."})

    async def drain(self, name: str) -> Response:
        """Send it no new work."""
        return _json(await self.operator.drain(name, read_wish(await _body())))

    async def undrain(self, name: str) -> Response:
        """Send it work again."""
        return _json(await self.operator.undrain(name))

    async def change_role(self, name: str) -> Response:
        """Ask it for the other kind of leg, once it has nothing in flight."""
        done = await self.operator.change_role(name, read_wish(await _body()))
        return _json(done, 202 if done["wanted_role"] else 200)


async def _body() -> bytes:
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)
    return data


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype=JSON)

"""Operators' routes: add, remove and operate nodes; status for other routers' tools."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from quart import Blueprint, Response, request

from proxy.admin import shapes
from proxy.admin.node_operations import (
    DrainRequest,
    Operator,
    RoleRequest,
    UndrainRequest,
    UnknownInstance,
    read_operator_request,
)
from proxy.nodes.instances import Instances, read_instance

JSON = "application/json"
ACCEPTED = 202


@dataclass(frozen=True, slots=True)
class AdminRoutes:
    """Requests get here only with an administrator's key; `status` renders /status."""

    instances: Instances
    operator: Operator
    status: Callable[[], Awaitable[dict[str, Any]]]

    def blueprint(self) -> Blueprint:
        """All routes as a Quart blueprint."""
        routes = Blueprint("admin", __name__)
        routes.get("/instances")(self.show_all)
        routes.post("/instances/add")(self.add)
        routes.post("/instances/remove")(self.remove)
        routes.delete("/instances")(self.remove)
        routes.get("/instances/<name>")(self.show)
        routes.delete("/instances/<name>")(self.remove_one)
        routes.post("/instances/<name>/drain")(self.drain)
        routes.post("/instances/<name>/undrain")(self.undrain)
        routes.post("/instances/<name>/role")(self.change_role)
        routes.get("/workers")(self.show_workers)
        routes.post("/workers")(self.add_worker)
        routes.get("/workers/<path:name>")(self.show_worker)
        routes.delete("/workers/<path:name>")(self.remove_worker)
        routes.get("/get_loads")(self.show_loads)
        routes.get("/metrics/targets")(self.show_scrape_targets)
        routes.get("/healthcheck")(self.say_who_is_there)
        routes.get("/liveness")(self.say_alive)
        routes.get("/readiness")(self.show_readiness)
        return routes

    async def show_all(self) -> Response:
        """Every known node, as in /status."""
        return _json({"instances": (await self.status())["nodes"]})

    async def show(self, name: str) -> Response:
        """One node, as in /status."""
        return _json(await self._told(name))

    async def add(self) -> Response:
        """Add a node that does not register itself."""
        instance = read_instance(await _body())
        await self.instances.add(instance)
        kind = instance.role.name.lower()
        return _json({"message": f"Added {instance.address} to {kind}_instances."})

    async def remove(self) -> Response:
        """Remove a node that was added by hand, with the same body."""
        instance = read_instance(await _body())
        await self.instances.remove(instance)
        await self.operator.release(instance.address)
        kind = instance.role.name.lower()
        return _json({"message": f"Removed {instance.address} from {kind}_instances."})

    async def remove_one(self, name: str) -> Response:
        """Remove a node by its id or address; by the latter also while it is silent."""
        added = self.instances.was_added(name)
        address = name if added else self.operator.find(name).address
        await self._forget(address)
        return _json({"message": f"Removed {address}."})

    async def drain(self, name: str) -> Response:
        """Send the node no new work."""
        body = read_operator_request(await _body(), DrainRequest)
        return _json(await self.operator.drain(name, body))

    async def undrain(self, name: str) -> Response:
        """Send the node work again."""
        read_operator_request(await _body(), UndrainRequest)
        return _json(await self.operator.undrain(name))

    async def change_role(self, name: str) -> Response:
        """Change the node's role once nothing is in flight there."""
        body = read_operator_request(await _body(), RoleRequest)
        done = await self.operator.change_role(name, body)
        return _json(done, ACCEPTED if done["wanted_role"] else 200)

    async def show_workers(self) -> Response:
        """All nodes, in the format of SGLang's router."""
        return _json(shapes.workers((await self.status())["nodes"]))

    async def show_worker(self, name: str) -> Response:
        """One node by its id or URL, in the format of SGLang's router."""
        return _json(shapes.worker(await self._told(_address(name))))

    async def add_worker(self) -> Response:
        """Add a node like `add`; it is registered before the answer is sent."""
        instance = shapes.read_worker(await _body())
        await self.instances.add(instance)
        name = self.operator.find(instance.address).node_id
        url = f"http://{instance.address}"
        where = {"url": url, "location": f"/workers/{name}"}
        return _json({"status": "accepted", "worker_id": name, **where}, ACCEPTED)

    async def remove_worker(self, name: str) -> Response:
        """Remove a node like `remove_one`."""
        address, worker_id = _address(name), None
        if not self.instances.was_added(address):
            address = self.operator.find(address).address
        if node := self.operator.registry.at(address):
            worker_id = node.node_id
        await self._forget(address)
        return _json({"status": "accepted", "worker_id": worker_id}, ACCEPTED)

    async def show_loads(self) -> Response:
        """The load of each node."""
        return _json(shapes.loads((await self.status())["nodes"]))

    async def show_scrape_targets(self) -> Response:
        """Where Prometheus finds the metrics of each node."""
        return _json(shapes.scrape_targets((await self.status())["nodes"]))

    async def say_alive(self) -> Response:
        """Answer that this process is alive, whatever the state of the nodes."""
        return _json({"status": "ok"})

    async def say_who_is_there(self) -> Response:
        """Answer the same, with the number of nodes."""
        return _json(shapes.healthcheck(await self.status()))

    async def show_readiness(self) -> Response:
        """Whether requests can be answered."""
        code, body = shapes.readiness(await self.status())
        return _json(body, code)

    async def _forget(self, address: str) -> None:
        await self.instances.forget(address)
        await self.operator.release(address)

    async def _told(self, name: str) -> dict[str, Any]:
        address = self.operator.find(name).address
        known = {one["http_address"]: one for one in (await self.status())["nodes"]}
        found: dict[str, Any] | None = known.get(address)
        if found is None:  # it has left while the other workers were asked
            raise UnknownInstance(f"Instance {name!r} is not known here.", "instance")
        return found


def _address(name: str) -> str:
    """A worker's id may be its URL."""
    return name.removeprefix("http:").lstrip("/")


async def _body() -> bytes:
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)
    return data


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype=JSON)

"""Nodes of vLLM that register do not say which model they have: they are asked, ever again.

Who registers under another address next time, or with another model, is asked anew.
"""

import asyncio
from dataclasses import dataclass

import aiohttp
import msgspec

from api.models import OWNER
from discovery.registry import Node, Registry, node_address
from proxy.nodes.session import get_json

ASK_S = 2.0
MODELS = "/v1/models"


@dataclass(slots=True)
class Naming:
    """Has the registry know what they serve, while `run` runs."""

    session: aiohttp.ClientSession
    registry: Registry
    ask_s: float = ASK_S

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.gather(*map(self._ask, self.nameless()))
            await asyncio.sleep(self.ask_s)

    def nameless(self) -> list[Node]:
        """Those that say no model themselves."""
        return [
            node
            for node in self.registry.all()
            if not node.ours and not node.static and self.registry.is_nameless(node)
        ]

    async def _ask(self, node: Node) -> None:
        """One that does not answer is called as before."""
        address = node_address(node)
        if model := await model_at(self.session, address):
            self.registry.name(address, model)


async def model_at(session: aiohttp.ClientSession, address: str) -> str | None:
    """What whoever is there serves, by `/v1/models`; None: it does not say, or is a proxy of
    ours, maybe this very one: our nodes say elsewhere who they are.
    """
    said = await get_json(session, address, MODELS)
    try:
        model = msgspec.convert(said, _Models).data[0]
    except (msgspec.ValidationError, IndexError):
        return None
    return None if model.owned_by == OWNER else model.id


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""


class _Models(msgspec.Struct):
    data: list[_Model]

"""Nodes of vLLM that register do not say which model they have, nor how much context: they are
asked, ever again.

Who registers under another address next time, or with another model, is asked anew.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from api.models import OWNER
from discovery.registry import Node, Registry, node_address
from proxy.nodes.session import SignatureRejected, get_json

ASK_S = 2.0
MODELS = "/v1/models"


@dataclass(slots=True)
class ModelNameProbe:
    """Has the registry know what they serve, while `run` runs; `ours`: whatever they call it,
    it is what this proxy was told of.
    """

    session: aiohttp.ClientSession
    registry: Registry
    ask_s: float = ASK_S
    fixed_name: bool = False

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
        if (said := await model_at(self.session, address)) is not None:
            name = None if self.fixed_name else said.id
            self.registry.name(address, name, said.longest)


async def model_at(session: aiohttp.ClientSession, address: str) -> "ModelCard | None":
    """What whoever is there serves, by `/v1/models`; None: it does not say, or is a proxy of
    ours, maybe this very one: our nodes say elsewhere who they are.
    """
    try:
        said = await get_json(session, address, MODELS)
        model = msgspec.convert(said, _Models).data[0]
    except (msgspec.ValidationError, IndexError, SignatureRejected):
        return None
    return None if model.owned_by == OWNER else model


class ModelCard(msgspec.Struct):
    """A model as vLLM tells of it; some tell of no context."""

    id: str
    owned_by: str = ""
    max_model_len: Any = None

    @property
    def longest(self) -> int | None:
        """Its context, in tokens; None: it does not say."""
        most = self.max_model_len
        return most if isinstance(most, int) and most > 0 else None


class _Models(msgspec.Struct):
    data: list[ModelCard]

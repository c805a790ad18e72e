"""Asks registered vLLM nodes for model and context length, which they do not register.

They are polled, since either may change.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from api.models import OWNER
from discovery.node import Node
from discovery.registration import Context, is_plain_name
from discovery.registry import Registry
from proxy.nodes.session import SignatureRejected, get_json

ASK_S = 2.0
MODELS = "/v1/models"


@dataclass(slots=True)
class ModelNameProbe:
    """Keeps the registry informed while `run` runs. `fixed_name`: the proxy's settings name the
    model, so only the context is taken from the nodes.
    """

    session: aiohttp.ClientSession
    registry: Registry
    ask_s: float = ASK_S
    fixed_name: bool = False

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.gather(*map(self._ask, self.nameless()))
            await asyncio.sleep(self.ask_s)

    def nameless(self) -> list[Node]:
        """Nodes that register without a model."""
        return [
            node
            for node in self.registry.all()
            if not node.ours and not node.static and self.registry.is_nameless(node)
        ]

    async def _ask(self, node: Node) -> None:
        """Ask one node; without an answer nothing changes."""
        address = node.address
        if (said := await model_at(self.session, address)) is not None:
            name = None if self.fixed_name else said.id
            self.registry.name(address, name, said.longest)


async def model_at(session: aiohttp.ClientSession, address: str) -> "ModelCard | None":
    """The model served at an address, by `/v1/models`; None: no answer, a pdserve proxy, or a
    name that must not get into log lines.
    """
    try:
        said = await get_json(session, address, MODELS)
        model = msgspec.convert(said, _Models).data[0]
    except (msgspec.ValidationError, IndexError, SignatureRejected):
        return None
    nameable = model.owned_by != OWNER and is_plain_name(model.id)
    return model if nameable else None


class ModelCard(msgspec.Struct):
    """A model in vLLM's `/v1/models`; some versions do not report the context length."""

    id: str
    owned_by: str = ""
    max_model_len: Any = None

    @property
    def longest(self) -> int | None:
        """Its context in tokens; None: unknown."""
        try:
            return msgspec.convert(self.max_model_len, Context | None)
        except msgspec.ValidationError:
            return None


class _Models(msgspec.Struct):
    data: list[ModelCard]

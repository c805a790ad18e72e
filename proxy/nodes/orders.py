"""Sends an operator's orders (drain, change of role) to pdserve nodes."""

from dataclasses import dataclass, field
from uuid import uuid4

import aiohttp
import msgspec

from api.wire import UNREADABLE
from discovery.node import Node
from discovery.orders import PATH, NodeOrder, OrderResult, to_order
from discovery.registration import Role, State, pack
from discovery.signature import SigningTimes, sign
from discovery.signed_calls import Signing
from proxy.nodes.session import read_all

PATIENCE_S = 5.0
LONGEST_ANSWER = 64 << 10
OK, CONFLICT = 200, 409


class _ErrorBody(msgspec.Struct, frozen=True):
    message: str = ""


class OrderFailed(Exception):
    """The order was not carried out; `refused`: the node rejected it and said why."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class OrderSender:
    """Signs orders if the cluster has a key; `sender` identifies this proxy to nodes."""

    session: aiohttp.ClientSession
    signing: Signing = field(default_factory=Signing)
    cluster_key: bytes | None = field(default=None, repr=False)
    sender: str = field(default_factory=lambda: uuid4().hex)
    _stamps: SigningTimes = field(default_factory=SigningTimes)

    async def send(
        self, node: Node, *, state: State | None = None, role: Role | None = None
    ) -> OrderResult:
        """Send an order; raises OrderFailed. Without an answer it may have been carried out."""
        message = to_order(NodeOrder(node.node_id, self.sender, state, role))
        if self.cluster_key:
            message = sign(message, self.cluster_key, wall_time=self._stamps.another())
        url = f"http://{node.address}{PATH}"
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        try:
            called = self.session.post(
                url,
                data=pack(message),
                headers=self.signing.headers("POST", PATH),
                timeout=timeout,
                allow_redirects=False,
            )
            async with called as answer:
                return _read(answer.status, await read_all(answer, LONGEST_ANSWER))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise OrderFailed(str(error) or "it did not answer") from error


def _read(status: int, data: bytes) -> OrderResult:
    try:
        if status == OK:
            return msgspec.json.decode(data, type=OrderResult)
        said = msgspec.json.decode(data, type=_ErrorBody).message
    except UNREADABLE as error:
        raise OrderFailed(f"it answered with status {status}") from error
    raise OrderFailed(said or f"it answered with status {status}", refused=status == CONFLICT)

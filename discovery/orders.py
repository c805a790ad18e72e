"""What a proxy tells a node of ours on an operator's behalf: take no new work, or another role.

One msgpack map in the body of a POST to the node's door, signed where the cluster has a key.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from discovery.errors import MalformedOrder
from discovery.registration import Role, State

PATH = "/orders"
LONGEST_ORDER = 4 << 10
SENDER = "sender"
"""The key of who gives it, whose clock its `time` is of: see discovery/signature.py."""


class NodeOrder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`to` is the node's id, so that no order reaches the next process at its address.

    `state` and `role` are what is wanted of it; None: as it is.
    """

    to: str
    sender: str
    state: State | None = None
    role: Role | None = None
    time: float | None = None
    mac: bytes | None = None


class OrderResult(msgspec.Struct, frozen=True):
    """How a node stands: what it answers to an order.

    `wanted` is the role that it will have once it has nothing in flight; None: its own.
    `in_flight` counts legs that somebody reads, `kv_blocks_used` what others may still fetch.
    """

    node_id: str
    role: Role
    state: State
    wanted: Role | None
    in_flight: int
    kv_blocks_used: int


def to_order(order: NodeOrder) -> dict[str, Any]:
    """The message as plain values."""
    plain: dict[str, Any] = msgspec.to_builtins(order, builtin_types=(bytes,))
    return plain


def from_order(message: Mapping[str, object]) -> NodeOrder:
    """Check what anybody sent; raises MalformedOrder."""
    try:
        return msgspec.convert(message, NodeOrder)
    except msgspec.ValidationError as error:
        raise MalformedOrder(str(error)) from error

"""Orders of an operator that a proxy passes on to a node: drain, undrain, or change role.

One msgpack map in the body of a POST to the node's door, signed if the cluster has a key.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from discovery.errors import MalformedOrder
from discovery.registration import Role, State

PATH = "/orders"
LONGEST_ORDER = 4 << 10
SENDER = "sender"
"""The field that names the sender, whose clock `time` is from: see discovery/signature.py."""


class NodeOrder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`to` is the node's id, so that no order reaches a later process at the same address.

    `state` and `role` are the new values; None: unchanged.
    """

    to: str
    sender: str
    state: State | None = None
    role: Role | None = None
    time: float | None = None
    mac: bytes | None = None


class OrderResult(msgspec.Struct, frozen=True):
    """A node's answer to an order: its state after the order.

    `wanted` is the role that it changes to once nothing is in flight; None: no change.
    `in_flight` counts open legs; `kv_blocks_used` includes KV that others may still fetch.
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
    """Check an untrusted message; raises MalformedOrder."""
    try:
        return msgspec.convert(message, NodeOrder)
    except msgspec.ValidationError as error:
        raise MalformedOrder(str(error)) from error

"""Finds the leg that a call asks for: in its parameters, or otherwise by its request id."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from api.generator import WHOLE, Leg
from api.served import read_leg_params
from discovery.address import parse_address
from discovery.errors import MalformedAddress
from kv_transfer.ticket import KvTicket

XPYD = re.compile(r"___prefill_addr_(?P<prefill>.+?)___decode_addr_(?P<decode>.+)_[^_]+$")
"""The request id that vLLM's XpYd proxy gives both of its legs; it holds their addresses."""


@dataclass(frozen=True, slots=True)
class LegFinder:
    """Finds legs for the node whose KV side channel is at `zmq_address`."""

    zmq_address: str

    def of_text(self, outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
        """The leg of one choice of a text request; raises BadRequest."""
        leg = read_leg_params(outer_id, params, index)
        return self.of_request_id(outer_id, index) if leg == WHOLE else leg

    def of_request_id(self, outer_id: str, index: int = 0) -> Leg:
        """The leg for which vLLM's XpYd proxy calls this node; WHOLE for any other id.

        The prefill node offers its KV under the id, and the decode node asks for that id;
        `index` tells the choices of one request apart.
        """
        found = XPYD.search(outer_id)
        if not found or found["prefill"] == found["decode"]:
            return WHOLE
        shared = f"{outer_id}#{index}"
        if found["prefill"] == self.zmq_address:
            return Leg(hold=True, outer_id=shared)
        if found["decode"] != self.zmq_address:
            return WHOLE
        try:
            host, port = parse_address(found["prefill"])
        except MalformedAddress:
            return WHOLE
        return Leg(ticket=KvTicket(shared, None, host, port, None))

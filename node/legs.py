"""Finds the leg that a call asks for: in its parameters, or otherwise by its request id."""

from collections.abc import Mapping
from dataclasses import dataclass

from api.generator import WHOLE, Leg
from api.served import read_leg_params
from discovery.address import parse_address
from discovery.errors import MalformedAddress
from kv_transfer.ticket import LONGEST_NAME, KvTicket

PREFILL, DECODE = "___prefill_addr_", "___decode_addr_"
"""In the request id that vLLM's XpYd proxy gives both of its legs, what stands before each
address; behind the decode node's there is one underscore more, and a number.
"""


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
        if len(outer_id) > LONGEST_NAME:
            return WHOLE
        _, _, behind = outer_id.partition(PREFILL)
        prefill, _, behind = behind.partition(DECODE)
        decode, _, number = behind.rpartition("_")
        if not (prefill and decode and number) or prefill == decode:
            return WHOLE
        shared = f"{outer_id}#{index}"
        if prefill == self.zmq_address:
            return Leg(hold=True, outer_id=shared)
        if decode != self.zmq_address:
            return WHOLE
        try:
            host, port = parse_address(prefill)
        except MalformedAddress:
            return WHOLE
        return Leg(ticket=KvTicket(shared, None, host, port, None))

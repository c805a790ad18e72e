"""Nodes of vLLM may be silent for as long as they prefill; ours say something every 2 s."""

from typing import Any

import pytest

from api.generator import WHOLE, Leg
from discovery.registration import Registration, Role
from discovery.registry import Node
from engine.request import Request, RequestId
from proxy.errors import NodeFailed
from proxy.nodes.client import FOREIGN_SILENCE_S, SILENCE_S, HttpNodeClient
from proxy.nodes.line import HungUp, Patience
from proxy.nodes.lines import Lines

REQUEST = Request(RequestId("r"), (1, 2, 3))


class Noting(Lines):
    """Notes how patient each call is, and reaches nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = list[Patience]()

    async def call(self, *given: Any) -> Any:  # noqa: ANN401
        self.noted += [one for one in given if isinstance(one, Patience)]
        raise HungUp("nobody is there")


@pytest.mark.parametrize("leg", [WHOLE, Leg(hold=True)])
async def test_a_node_of_vllm_may_be_silent_for_minutes_before_and_within_its_answer(
    leg: Leg,
) -> None:
    vllm = Node(Registration(Role.PREFILL, "h:1", "", model="m"), 0)
    lines = Noting()
    with pytest.raises(NodeFailed):
        async for _ in HttpNodeClient(lines).generate(vllm, REQUEST, leg):
            pass
    assert lines.noted == [Patience(FOREIGN_SILENCE_S, FOREIGN_SILENCE_S)]
    assert FOREIGN_SILENCE_S >= 60 * SILENCE_S

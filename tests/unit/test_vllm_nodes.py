"""What the proxy remembers of nodes of vLLM, and for how long."""

import msgspec
import pytest

from api.generator import Leg
from api.wire import WireError
from discovery.node import Node
from discovery.registration import Registration, Role
from proxy.foreign.vllm_nodes import VllmNodes

HOLD = Leg(hold=True)


def mooncake(address: str = "h:1") -> Node:
    return Node(Registration(Role.PREFILL, address, "", bootstrap_port=8998), heard_at=0)


def ranks(*names: str) -> bytes:
    return msgspec.json.encode({name: {"engine_id": f"e{name}"} for name in names})


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"{}", ranks("a"), ranks("-1"), ranks("0", "٣"), b'{"0":{}}']
)
def test_a_bootstrap_server_that_lists_no_engines_is_of_no_use(said: bytes) -> None:
    """A rank goes into a header, which holds no digits but ASCII's."""
    with pytest.raises(WireError, match="bootstrap"):
        VllmNodes().learn_engines(mooncake(), said, 0.0)

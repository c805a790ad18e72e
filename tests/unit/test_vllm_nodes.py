"""What the proxy remembers of nodes of vLLM, and for how long."""

from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest

from api.generator import Leg
from api.wire import WireError
from discovery.node import Node
from discovery.registration import Registration, Role
from kv_transfer.ticket import KvTicket
from proxy.foreign.vllm_nodes import FRESH_S, MOST_KNOWN, PULL, LegHandOver, VllmNodes

HOLD = Leg(hold=True)
PORT = 8998
WHERE = {"remote_engine_id": "e", "remote_host": "h", "remote_port": 5600, "tp_size": 2}


def node(address: str = "h:1", port: int | None = None) -> Node:
    return Node(Registration(Role.PREFILL, address, "", bootstrap_port=port), heard_at=0)


def ranks(*names: str) -> bytes:
    return msgspec.json.encode({name: {"engine_id": f"e{name}"} for name in names})


def ticket(mode: str = "push", **said: Any) -> KvTicket:  # noqa: ANN401
    verbatim = {**WHERE, "transfer_mode": mode, "remote_request_id": "inner", **said}
    return KvTicket("t", str(verbatim["remote_engine_id"]), "h", 1, None, verbatim=verbatim)


def pushes(nodes: VllmNodes, one: Node) -> bool:
    return nodes.hand_over(one, HOLD, "outer").ticket is not None


@pytest.mark.parametrize(
    "said", [b"", b"[]", b"{}", ranks("a"), ranks("-1"), ranks("0", "٣"), b'{"0":{}}']
)
def test_a_bootstrap_server_that_lists_no_engines_is_of_no_use(said: bytes) -> None:
    """A rank goes into a header, which holds no digits but ASCII's."""
    with pytest.raises(WireError, match="bootstrap"):
        VllmNodes().learn_engines(node(port=PORT), said, 0.0)


@pytest.mark.parametrize(("address", "host"), [("h:1", "h"), ("[::1]:1", "[::1]")])
def test_engines_are_asked_for_anew_after_a_while(address: str, host: str) -> None:
    nodes, one = VllmNodes(), node(address, PORT)
    assert nodes.bootstrap(one, 5.0) == f"{host}:{PORT}"
    nodes.learn_engines(one, ranks("0"), 5.0)
    assert nodes.bootstrap(one, 4.9 + FRESH_S) is None
    assert nodes.bootstrap(one, 5.0 + FRESH_S) == f"{host}:{PORT}"
    assert nodes.bootstrap(node("other:1", PORT), 5.0) == f"other:{PORT}"
    assert nodes.bootstrap(node("other:1"), 5.0) is None


def test_or_after_a_failure_that_may_come_of_them() -> None:
    nodes, one, other = VllmNodes(), node(port=PORT), node("other:1", PORT)
    for failed in (partial(nodes.doubt, one), partial(nodes.doubt_engine, "e1")):
        nodes.learn_engines(one, ranks("0", "1"), 0.0)
        nodes.learn_engines(other, ranks("2"), 0.0)
        failed()
        assert nodes.bootstrap(one, 0.0) is not None
        assert nodes.bootstrap(other, 0.0) is None
    nodes.learn_engines(one, ranks("0", "1"), 0.0)
    nodes.doubt_engine("e3")
    assert nodes.bootstrap(one, 0.0) is None


def test_each_rank_of_mooncake_gets_its_share_and_decode_its_engine() -> None:
    nodes, one, legs = VllmNodes(), node(port=PORT), Counter[tuple[str, object]]()
    nodes.learn_engines(one, ranks("0", "1"), 0.0)
    for number in range(6):
        manner = nodes.hand_over(one, HOLD, f"outer{number}")
        assert manner.ticket is not None
        decode, params = manner.ticket.verbatim or {}, manner.params or {}
        assert decode["transfer_id"] == params["transfer_id"] == f"xfer-outer{number}"
        legs[dict(manner.headers)["X-data-parallel-rank"], decode["remote_engine_id"]] += 1
    assert legs == {("0", "e0"): 3, ("1", "e1"): 3}


def test_who_pushes_once_is_asked_to_from_then_on() -> None:
    nodes, one = VllmNodes(), node()
    first = nodes.hand_over(one, HOLD, "outer")
    assert first == LegHandOver(PULL)
    assert nodes.learn_ticket(one, first, ticket())
    assert not pushes(nodes, node("other:1"))
    second = nodes.hand_over(one, HOLD, "next")
    assert second.params == PULL
    assert second.ticket is not None
    flags = {"do_remote_prefill": True, "do_remote_decode": False}
    assert second.ticket.verbatim == {**flags, **WHERE, "remote_request_id": "next"}


@pytest.mark.parametrize("change", [{"remote_engine_id": "f"}, {"tp_size": 4}, {"pp_size": 2}])
def test_who_pushes_elsewhere_than_decode_was_told_is_found_out(
    change: dict[str, Any],
) -> None:
    nodes, one = VllmNodes(), node()
    nodes.learn_ticket(one, nodes.hand_over(one, HOLD, "outer"), ticket())
    told = nodes.hand_over(one, HOLD, "next")
    assert nodes.learn_ticket(one, told, ticket())
    assert not nodes.learn_ticket(one, told, ticket(**change))
    again = nodes.hand_over(one, HOLD, "third")
    assert nodes.learn_ticket(one, again, ticket(**change))


def test_who_pushes_no_more_is_not_asked_to() -> None:
    nodes, one = VllmNodes(), node()
    nodes.learn_ticket(one, nodes.hand_over(one, HOLD, "outer"), ticket())
    assert nodes.learn_ticket(one, nodes.hand_over(one, HOLD, "next"), ticket("pull"))
    assert not pushes(nodes, one)


def test_a_failed_leg_is_a_reason_to_ask_where_kv_is_pushed_from() -> None:
    nodes, one, other = VllmNodes(), node(), node("other:1")
    for failed in (partial(nodes.doubt, one), partial(nodes.doubt_engine, "e")):
        for each, engine in ((one, "e"), (other, "f")):
            said = ticket(remote_engine_id=engine)
            nodes.learn_ticket(each, nodes.hand_over(each, HOLD, "outer"), said)
        failed()
        assert not pushes(nodes, one)
        assert pushes(nodes, other)


def test_an_endpoint_that_is_missing_is_tried_again_where_both_are() -> None:
    nodes, one = VllmNodes(), node()
    nodes.lacks_generate(one)
    assert not nodes.generates(one)
    assert nodes.generates(node("other:1"))
    nodes.retry_generate(one)
    assert nodes.generates(one)


def test_those_heard_of_last_are_remembered() -> None:
    nodes, one = VllmNodes(), node()
    nodes.lacks_generate(one)
    for number in range(MOST_KNOWN - 1):
        nodes.lacks_generate(node(f"n{number}:1"))
    assert not nodes.generates(one)
    nodes.lacks_generate(one)
    nodes.lacks_generate(node("last:1"))
    assert not nodes.generates(one)
    assert nodes.generates(node("n0:1"))
    assert not nodes.generates(node("n1:1"))


def test_a_decode_leg_has_its_ticket_word_for_word() -> None:
    said = ticket()
    assert VllmNodes().hand_over(node(), Leg(ticket=said), "o").params == said.verbatim
    assert VllmNodes().hand_over(node(), Leg(), "o") == LegHandOver()

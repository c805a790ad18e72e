"""What a node knows of itself before a model is loaded."""

import pytest
from msgspec.structs import replace

from api.generator import (
    WHOLE,
    Event,
    FailedEvent,
    Leg,
    PooledEvent,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.registration import Role, State
from engine.api import EngineLoad
from engine.cache_events import BlocksRemoved, BlocksStored
from engine.request import FinishReason, Request, RequestId, Sampling
from kv_transfer.layout import KvLayout
from kv_transfer.ticket import KvTicket
from node.addresses import UnreachableAddress, advertised_host
from node.config import NodeConfig
from node.identity import NodeIdentity
from node.ipc import (
    NO_LOAD,
    Abort,
    EngineOutputs,
    EngineReady,
    EngineStartFailed,
    SubmitLeg,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from node.leg_inbox import LegInbox
from node.legs import LegFinder
from node.metrics import NodeMetrics

rid = RequestId("r~1")
PREFILL, DECODE = "10.0.0.1:21001", "[::1]:22001"
OUTER = f"___prefill_addr_{PREFILL}___decode_addr_{DECODE}_0123456789abcdef"
layout = KvLayout("float32", 16, 2, (4096,))
ticket = KvTicket("e/r", "e", "h", 1, "f", relayed={"remote_block_ids": [[1, 2]]})


def test_a_node_here_is_reached_here() -> None:
    assert advertised_host("127.0.0.1", None, ["127.0.0.1:30001"]) == "127.0.0.1"
    assert advertised_host("0.0.0.0", None, ["127.0.0.1:30001"]) == "127.0.0.1"
    assert advertised_host("0.0.0.0", None, []) == "127.0.0.1"
    assert advertised_host("127.0.0.1", "node-7", ["127.0.0.1:30001"]) == "node-7"
    assert advertised_host("10.1.2.3", None, []) == "10.1.2.3"


def test_loopback_is_no_address_for_a_proxy_elsewhere() -> None:
    with pytest.raises(UnreachableAddress, match="--host"):
        advertised_host("127.0.0.1", None, ["192.0.2.1:30001"])


def test_of_several_proxies_one_that_is_elsewhere_says_what_others_call_a_node() -> None:
    """What a proxy here can use, one elsewhere cannot."""
    with pytest.raises(UnreachableAddress, match="--host"):
        advertised_host("127.0.0.1", None, ["127.0.0.1:30001", "192.0.2.1:30001"])
    host = advertised_host("0.0.0.0", None, ["127.0.0.1:30001", "192.0.2.1:30001"])
    assert not host.startswith("127.")


def test_a_proxy_whose_name_is_not_known_keeps_no_node_from_the_others() -> None:
    proxies = ["nobody.invalid:30001", "127.0.0.1:30001"]
    assert advertised_host("0.0.0.0", None, proxies) == "127.0.0.1"
    with pytest.raises(UnreachableAddress, match=r"--proxy nobody\.invalid:30001: "):
        advertised_host("0.0.0.0", None, proxies[:1])


def test_a_node_that_is_told_its_address_starts_before_its_proxies_have_names() -> None:
    assert advertised_host("0.0.0.0", "10.9.8.7", ["nobody.invalid:30001"]) == "10.9.8.7"


def test_an_xpyd_request_id_gives_each_node_its_leg() -> None:
    offered = LegFinder(PREFILL).of_request_id(OUTER)
    assert offered == Leg(hold=True, outer_id=f"{OUTER}#0")
    pulled = LegFinder(DECODE).of_request_id(OUTER)
    assert pulled == Leg(ticket=KvTicket(f"{OUTER}#0", None, "10.0.0.1", 21001, None))


def test_an_xpyd_request_id_of_other_nodes_means_nothing() -> None:
    assert LegFinder("10.0.0.3:22001").of_request_id(OUTER) == WHOLE


def test_choices_of_one_request_are_told_apart() -> None:
    first, second = (LegFinder(PREFILL).of_text(OUTER, None, index) for index in (0, 1))
    assert first.outer_id != second.outer_id


@pytest.mark.parametrize(
    "outer_id",
    [
        "anything",
        "",
        "___prefill_addr____decode_addr__x",
        OUTER.replace(DECODE, PREFILL),
        OUTER.replace(PREFILL, "nobody:1"),
        f"___prefill_addr_nonsense___decode_addr_{DECODE}_0",
    ],
)
def test_other_request_ids_mean_nothing(outer_id: str) -> None:
    assert LegFinder(PREFILL).of_request_id(outer_id) == WHOLE or "nobody" in outer_id
    if "nobody" not in outer_id:
        assert LegFinder(DECODE).of_request_id(outer_id) == WHOLE


def test_a_request_id_that_is_long_is_read_at_once() -> None:
    """An expression that backtracks took seconds for 16 kB, and the server stood still."""
    for outer_id in ("___prefill_addr_a___decode_addr_" * 30, OUTER + "x" * 1024):
        assert LegFinder(DECODE).of_request_id(outer_id) == WHOLE
    marks = f"___prefill_addr_{PREFILL}" + "___decode_addr_" * 20_000
    assert LegFinder(PREFILL).of_request_id(marks) == WHOLE


def test_parameters_come_before_the_request_id() -> None:
    params = {"do_remote_decode": True}
    assert LegFinder(DECODE).of_text(OUTER, params, 0) == Leg(hold=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("port", 65536), ("kv_port", -1), ("max_num_seqs", 0), ("block_size", 0)),
        *(("threads", 0), ("proxy", ("here",)), ("proxy", ("127.0.0.1:1", "h:70000"))),
    ],
)
def test_settings_that_cannot_work_are_refused_by_flag(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"--{field.replace('_', '-')}"):
        NodeConfig(model="m", **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        SubmitLeg(Request(rid, (1, 2), Sampling(3), (4,)), Leg(hold=True, outer_id="o"), 1.5),
        SubmitLeg(Request(rid, (1, 2)), Leg(ticket=ticket), 2.5),
        Abort(rid),
    ],
)
def test_what_the_door_says_arrives(message: SubmitLeg | Abort) -> None:
    assert decode_to_engine(encode(message)) == message


def test_what_others_relay_in_a_ticket_does_not_travel_on() -> None:
    """No message of ours could hold it."""
    odd = replace(ticket, relayed={"remote_block_ids": 2**64})
    sent = SubmitLeg.of(Request(rid, (1, 2)), Leg(ticket=odd), 2.5)
    assert decode_to_engine(encode(sent)) == sent
    assert sent.leg.ticket == replace(ticket, relayed={})


@pytest.mark.parametrize(
    "message",
    [
        EngineReady("f", layout, 512, 21001, NO_LOAD),
        EngineStartFailed("no such folder"),
        EngineOutputs([], EngineLoad(1, 2, 3, 4)),
        EngineOutputs(
            [
                (rid, TicketEvent(ticket)),
                (rid, PromptEvent(3)),
                (rid, StageEvent("transfer", 0.5, 4096)),
                (rid, TokenEvent((7,), FinishReason.STOP, 7)),
                (rid, FailedEvent("gone", retryable=True, by_peer=True)),
            ],
            EngineLoad(0, 1, 3, 4, 5),
            cache_events=(
                BlocksStored((b"k" * 16,), None, (1, 2), "law", "salt"),
                BlocksRemoved((b"k" * 16,)),
            ),
        ),
    ],
)
def test_what_the_engine_says_arrives(
    message: EngineReady | EngineStartFailed | EngineOutputs,
) -> None:
    assert decode_from_engine(encode(message)) == message


def test_a_registration_has_the_load_of_the_moment() -> None:
    ready = EngineReady(
        "f", layout, 512, 21001, NO_LOAD, kv_connector="tcp", made_of={"x": "y"}
    )
    identity = NodeIdentity.of(Role.PREFILL, "id", ["m"], ("h:1", "h:2"), ready)
    identity.stopping = True
    said = identity.heartbeat(EngineLoad(1, 2, 3, 4))
    assert (said.type, said.node_id, said.state) == (Role.PREFILL, "id", State.DRAINING)
    assert (said.load.waiting, said.load.total_blocks) == (1, 4)
    assert (said.kv_connector, said.made_of) == ("tcp", {"x": "y"})
    assert said.kv_layout == {
        "dtype": "float32",
        "block_size": 16,
        "kv_heads": 2,
        "block_bytes": [4096],
        "tensor_parallel_size": 1,
        "layers": 1,
        "parts": 1,
        "head_dim": 1,
        "global_layers": 0,
        "global_kv_heads": 0,
        "global_head_dim": 0,
        "state_blocks": 0,
        "state_layers": 0,
        "state_key_heads": 0,
        "state_value_heads": 0,
        "state_key_width": 0,
        "state_value_width": 0,
        "state_taps": 0,
        "state_layer_bytes": 0,
        "version": 1,
    }


def test_metrics_count_what_was_said() -> None:
    metrics = NodeMetrics()
    events: list[tuple[RequestId, Event | PooledEvent]] = [
        (rid, PooledEvent(bytes(4), 1)),
        (rid, PromptEvent(16, fetched_tokens=4)),
        (rid, StageEvent("transfer", 0.5, 4096)),
        (rid, TokenEvent((7,))),
        (rid, TokenEvent((8,), FinishReason.LENGTH)),
        (rid, FailedEvent("x", retryable=True)),
    ]
    load = EngineLoad(1, 2, 3, 10, 4, 5, 6, 7, prompt_tokens=8)
    metrics.record(EngineOutputs(events, load, {"corrupt": 2, "expired": 1}))
    read = metrics.registry.get_sample_value
    assert read("pdserve_kv_blocks_used") == 7
    assert read("pdserve_kv_blocks_total") == 10
    assert read("pdserve_requests_waiting") == 1
    assert read("pdserve_requests_running") == 2
    assert read("pdserve_preemptions_total") == 4
    assert read("pdserve_spec_decode_num_drafts_total") == 5
    assert read("pdserve_spec_decode_num_draft_tokens_total") == 6
    assert read("pdserve_spec_decode_num_accepted_tokens_total") == 7
    assert read("pdserve_generation_tokens_total") == 2
    assert read("pdserve_prompt_tokens_computed_total") == 8
    assert read("pdserve_prompt_tokens_cached_total") == 16
    assert read("pdserve_prompt_tokens_fetched_total") == 4
    assert read("pdserve_kv_transfer_bytes_total") == 4096
    assert read("pdserve_stage_seconds_total", {"stage": "transfer"}) == 0.5
    assert read("pdserve_answers_finished_total", {"reason": "length"}) == 1
    assert read("pdserve_answers_finished_total", {"reason": "pooled"}) == 1
    assert read("pdserve_legs_failed_total") == 1
    assert read("pdserve_kv_load_failures_total", {"reason": "corrupt"}) == 2
    assert read("pdserve_kv_load_failures_total", {"reason": "expired"}) == 1
    assert read("pdserve_kv_load_failures_total", {"reason": "withdrawn"}) == 0, (
        "from the start"
    )


def test_signs_of_life_do_not_pile_up_before_who_does_not_read() -> None:
    inbox = LegInbox()
    for _ in range(5):
        inbox.keep_alive(alive=True)
    assert list(inbox.events) == [None]
    inbox.events.clear()
    for alive in (False, True, True):
        inbox.keep_alive(alive=alive)
    assert list(inbox.events) == [None]
    inbox.events.clear()
    inbox.put(PromptEvent(0))
    inbox.events.clear()
    inbox.keep_alive(alive=True)
    assert not inbox.events  # it has heard something since the last round

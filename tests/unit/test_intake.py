"""Nothing that anybody sends does more than being refused."""

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.address import format_address, parse_address
from discovery.errors import MalformedAddress, MalformedRegistration
from discovery.intake import MOST_NODES, MOST_SENDERS, Intake, check_receivable
from discovery.registration import LONGEST_FRAME, Registration, Role, pack, to_map
from discovery.registry import Registry
from discovery.signature import Verifier, sign

BARE = {"type": "P", "http_address": "h:1", "zmq_address": "h:2"}
KEY = b"key"

short = st.text(max_size=3)
scalars = (
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.floats() | st.binary(max_size=4)
)
plain: st.SearchStrategy[Any] = st.one_of(
    scalars, short, st.lists(scalars, max_size=2), st.dictionaries(short, scalars, max_size=2)
)
names = st.sampled_from([*BARE, "node_id", "load", "state", "time", "mac", "kv_layout"])
keys = names | short | st.binary(max_size=2)
messages = st.dictionaries(keys, plain, max_size=4).map(lambda some: BARE | some)
payloads = st.binary(max_size=20) | plain.map(msgpack.packb) | messages.map(msgpack.packb)


def take(intake: Intake, *frames: bytes, now: float = 0) -> object:
    return intake.take(frames, now=now, wall_time=100.0).joined


@given(frames=st.lists(payloads, max_size=4), key=st.sampled_from([None, KEY]))
def test_any_frames_are_taken_or_refused(frames: list[bytes], key: bytes | None) -> None:
    intake = Intake(Registry(), Verifier(key) if key else None)
    try:
        take(intake, *frames)
    except MalformedRegistration:
        assert not intake.registry.all()


@given(message=messages)
def test_whatever_is_signed_is_taken_or_refused(message: dict[Any, Any]) -> None:
    intake = Intake(Registry(), Verifier(KEY))
    try:
        signed = sign(message, KEY, wall_time=100.0)
        take(intake, b"id", pack(signed))
    except MalformedRegistration:
        assert not intake.registry.all()


@pytest.mark.parametrize("depth", [2, 500, 1000])
def test_a_layout_that_is_too_deep_to_compare_never_gets_in(depth: int) -> None:
    """At a depth of 1,000 msgpack is still content, and comparing two of them is not."""
    bare = pack({**BARE, "kv_layout": 0})
    assert bare.endswith(b"\0")
    with pytest.raises(MalformedRegistration, match="kv_layout"):
        take(Intake(Registry()), b"id", bare[:-1] + b"\x81\xa1x" * depth + b"\0")


@pytest.mark.parametrize(
    "layout", [{"block\nERROR size": 1}, {"dtype": "\x1b[2J"}, {"regions": [1, "\n"]}]
)
def test_no_part_of_a_layout_can_forge_a_line(layout: object) -> None:
    with pytest.raises(MalformedRegistration, match="name"):
        take(Intake(Registry()), b"id", pack(BARE | {"kv_layout": layout}))


@pytest.mark.parametrize("frames", [[b"id"], [b"id", b""]])
def test_vllms_frames_with_or_without_a_delimiter(frames: list[bytes]) -> None:
    intake = Intake(Registry())
    assert take(intake, *frames, bytes(msgpack.packb(BARE)))
    assert [node.node_id for node in intake.registry.all()] == ["h:1"]


@pytest.mark.parametrize("before", [[], [b"id", b"", b""]])
def test_a_message_of_too_few_or_too_many_frames_is_refused(before: list[bytes]) -> None:
    with pytest.raises(MalformedRegistration, match="frames"):
        take(Intake(Registry()), *before, bytes(msgpack.packb(BARE)))


@pytest.mark.parametrize(
    "change",
    [
        {"http_address": "no port"},
        {"http_address": "h:1\nINFO fine"},
        {"node_id": "n\nINFO fine"},
        {"model": "m" * 600},
        {"state": "asleep"},
    ],
    ids=repr,
)
def test_names_that_would_harm_a_log_or_a_url_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(MalformedRegistration):
        take(Intake(Registry()), b"id", pack(BARE | change))


def test_a_frame_is_short() -> None:
    with pytest.raises(MalformedRegistration, match="bytes"):
        take(Intake(Registry()), b"id", pack(BARE | {"more": "x" * LONGEST_FRAME}))


def test_with_a_key_only_what_is_signed_counts() -> None:
    intake = Intake(Registry(), Verifier(KEY))
    with pytest.raises(MalformedRegistration, match="no signature"):
        take(intake, b"id", pack(BARE))
    assert take(intake, b"id", pack(sign(BARE, KEY, wall_time=100.0)))


def test_without_a_key_what_is_signed_does_not_count() -> None:
    """The node that signs would refuse every call."""
    intake = Intake(Registry())
    with pytest.raises(MalformedRegistration, match="no --cluster-key"):
        take(intake, b"id", pack(sign(BARE, KEY, wall_time=100.0)))
    assert intake.registry.refused == {"signed": 1}
    assert take(intake, b"id", pack(BARE))


def test_a_time_that_is_no_number_is_not_near_ours() -> None:
    intake = Intake(Registry(), Verifier(KEY))
    with pytest.raises(MalformedRegistration):
        take(intake, b"id", pack(sign(BARE, KEY, wall_time=float("nan"))))


def test_the_number_of_nodes_is_bounded() -> None:
    intake = Intake(Registry())
    for i in range(MOST_NODES):
        take(intake, b"id", pack(BARE | {"http_address": f"h{i}:1"}))
    with pytest.raises(MalformedRegistration, match="known"):
        take(intake, b"id", pack(BARE))
    take(intake, b"id", pack(BARE | {"http_address": "h0:1"}))


def test_a_sender_is_blamed_once_and_memory_is_bounded() -> None:
    intake = Intake(Registry())
    assert [intake.is_first_complaint(one) for one in "aab"] == [True, False, True]
    assert all(intake.is_first_complaint(str(i)) for i in range(MOST_SENDERS))
    assert intake.is_first_complaint("a")  # long forgotten


def test_who_fits_nobody_is_told_once() -> None:
    """Two nodes that fit only each other's role are told both; who comes to fit one is not."""
    intake = Intake(Registry())
    nodes = (("P", "p:1", 16), ("D", "d:1", 32), ("D", "d:2", 16), ("P", "p:2", 16))
    told = []
    for kind, at, size in nodes:
        one = BARE | {"type": kind, "http_address": at, "kv_layout": {"block_size": size}}
        intake.take([b"", pack(one)], now=0, wall_time=0)
        told.append({node.address: why for node, why in intake.registry.new_misfits()})
    both = {
        "d:1": "block_size is 32 here and 16 on p:1",
        "p:1": "block_size is 16 here and 32 on d:1",
    }
    assert told == [{}, both, {}, {}]


def test_a_restart_is_told_as_such() -> None:
    intake = Intake(Registry())
    joined = [
        intake.take([b"", pack(BARE | {"node_id": name})], now=0, wall_time=0).joined
        for name in ("1", "1", "2")
    ]
    replaced = [one and (one.replaced and one.replaced.node_id) for one in joined]
    assert [one is not None for one in joined] == [True, False, True]
    assert replaced == [None, None, "1"]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("10.0.0.1:8100", ("10.0.0.1", 8100)),
        ("node-0.svc.cluster.local:1", ("node-0.svc.cluster.local", 1)),
        ("proxy.svc.cluster.local.:1", ("proxy.svc.cluster.local.", 1)),
        ("[::1]:65535", ("::1", 65535)),
        (f"{'a' * 63}.b_c-d:80", (f"{'a' * 63}.b_c-d", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed
    assert format_address(*parsed) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host", "format"),
        ("", "format"),
        (":80", "format"),
        ("host:", "format"),
        ("host:x", "port"),
        ("host:0", "port"),
        ("host:65536", "port"),
        ("host:1000000080", "port"),
        ("host:²", "port"),
        ("::1:80", "address"),
        ("a b:80", "address"),
        ("user@host:80", "address"),
        ("host/path:80", "address"),
        ("-x:80", "address"),
        ("a..b:80", "address"),
        ("a..:80", "address"),
        (".:80", "address"),
        ("müller.de:80", "address"),
        ("a.-b:80", "address"),
        (f"{'a' * 64}.b:80", "address"),
        (f"{'a.' * 127}:80", "address"),
    ],
)
def test_what_is_no_address(text: str, why: str) -> None:
    with pytest.raises(MalformedAddress, match=why):
        parse_address(text)


BAD = "two\nlines"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model", BAD),
        ("zmq_address", BAD),
        ("fingerprint", BAD),
        ("made_of", {BAD: ""}),
        ("made_of", {"weights": BAD}),
    ],
)
def test_a_known_node_is_refused_a_bad_name_as_any_other(name: str, said: object) -> None:
    intake = Intake(Registry())
    take(intake, b"id", pack(BARE))
    take(intake, b"id", pack(BARE), now=1)
    with pytest.raises(MalformedRegistration, match="printable"):
        take(intake, b"id", pack(BARE | {name: said}), now=2)
    assert [one.heard_at for one in intake.registry.all()] == [1]


def test_a_message_that_says_it_is_longer_than_it_is_costs_nothing() -> None:
    """Four billion aliases, and as many names in a layout, by their headers."""
    for name, header in (("aliases", b"\xdd"), ("kv_layout", b"\xdf"), ("what", b"\xdd")):
        frame = pack(BARE | {name: 0})
        with pytest.raises(MalformedRegistration):
            take(Intake(Registry()), b"id", frame[:-1] + header + b"\xff" * 4)


def test_a_word_that_nobody_reads_may_not_be_deep_without_end() -> None:
    frame = pack(BARE | {"what": 0})
    with pytest.raises(MalformedRegistration):
        take(Intake(Registry()), b"id", frame[:-1] + b"\x91" * 50_000 + b"\x01")


def test_who_is_held_is_held_when_it_comes_back() -> None:
    """A node that was drained by hand and restarts does not take work by that."""
    registry, held = Registry(), Registration(Role.DECODE, "d:1", "d:2", "d")
    registry.apply(held, now=0)
    registry.hold("d:1")
    registry.remove("d:1")
    registry.apply(held, now=1)
    assert not registry.nodes(Role.DECODE, now=1)
    registry.release("d:1")
    registry.apply(held, now=2)
    assert registry.nodes(Role.DECODE, now=2)


@pytest.mark.parametrize(
    ("adapters", "told"),
    [
        (["a" * 513], "too long or not printable: 'aaa"),
        (["a\n"], "not printable"),
        ([f"adapter {number:03} {'a' * 400}" for number in range(160)], "too many or too long"),
    ],
)
def test_a_node_knows_before_that_its_registration_would_be_dropped(
    adapters: list[str], told: str
) -> None:
    """Else it would wait for requests forever, and only the proxy's log would say why."""
    one = Registration(Role.PREFILL, "h:1", "h:2", "x", "m", adapters=tuple(adapters))
    with pytest.raises(MalformedRegistration, match=told):
        check_receivable(one)


def test_the_largest_that_a_node_sends_is_received() -> None:
    many, received = tuple(f"{number:03}{'a' * 490}" for number in range(131)), 0
    for length in range(1, 500):
        adapters = (*many, "b" * length)
        one = Registration(Role.PREFILL, "h:1", "h:2", "x", "m", adapters=adapters)
        try:
            check_receivable(one)
        except MalformedRegistration:
            break
        received = length
        signed = pack(sign(to_map(one), KEY, wall_time=100.0))
        assert take(Intake(Registry(), Verifier(KEY)), b"x", signed) is not None
    assert 1 < received < 499

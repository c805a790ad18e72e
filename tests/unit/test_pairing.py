"""Who can read whose KV is known when nodes register, and who cannot is told why."""

import msgspec
import pytest

from discovery.node import Node
from discovery.registration import Layout, Registration, Role
from discovery.registry import Registry
from kv_transfer.layout import KvLayout
from proxy.routing.layouts import layout_difference
from tests.fakes.sharded import layout
from tests.fakes.sharded_states import Net


def plain(one: KvLayout) -> Layout:
    said: Layout = msgspec.json.decode(msgspec.json.encode(one))
    return said


def pair(prefill: Layout, decode: Layout) -> tuple[tuple[Node, ...], str | None]:
    """Decode's partners, and why it has none."""
    registry = Registry(differ=layout_difference)
    for role, name, one in ((Role.PREFILL, "p", prefill), (Role.DECODE, "d", decode)):
        registry.apply(Registration(role, f"{name}:1", f"{name}:2", name, "m", "f", one), now=0)
    (node,) = registry.nodes(Role.DECODE, now=0)
    return registry.partners(node, now=0), registry.misfit(node)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 4), (4, 1), (2, 4)])
def test_tensor_parallel_sizes_that_share_out_the_heads_are_paired(
    prefill: int, decode: int
) -> None:
    """Pain 29: it is known here, and not at the transfer."""
    partners, misfit = pair(
        plain(layout(16, heads=4, ranks=prefill)), plain(layout(16, heads=4, ranks=decode))
    )
    assert len(partners) == 1
    assert misfit is None


def test_ranks_that_share_out_a_state_are_paired() -> None:
    """By its key heads, of which there may be fewer than KV heads."""
    one, two, four = (layout(16, heads=4, ranks=ranks) for ranks in (1, 2, 4))
    net = Net(key_heads=2)
    partners, misfit = pair(plain(net.beside(one)), plain(net.beside(two)))
    assert (len(partners), misfit) == (1, None)
    partners, misfit = pair(plain(net.beside(one)), plain(net.beside(four)))
    assert (partners, misfit) == ((), "tensor_parallel_size is 4 here and 1 on p:1")
    partners, misfit = pair(plain(net.beside(one)), plain(Net(key_heads=4).beside(two)))
    assert (partners, misfit) == ((), "state_key_heads is 4 here and 2 on p:1")


@pytest.mark.parametrize(("prefill", "decode", "fit"), [(16, 32, 1), (32, 16, 1), (24, 16, 0)])
def test_block_sizes_are_paired_where_one_divides_the_other(
    prefill: int, decode: int, fit: int
) -> None:
    """Pain 30: else no request is ever sent that way."""
    partners, misfit = pair(plain(layout(prefill)), plain(layout(decode)))
    assert len(partners) == fit
    assert misfit == (None if fit else "block_size is 16 here and 24 on p:1")


@pytest.mark.parametrize(
    ("theirs", "why"),
    [("nixl", None), (None, None), ("tcp", "kv_connector is nixl here and tcp on p:1")],
)
def test_who_moves_kv_by_other_means_gets_none_of_it(
    theirs: str | None, why: str | None
) -> None:
    registry, ours = Registry(differ=layout_difference), plain(layout(16))
    for role, name, means in ((Role.PREFILL, "p", theirs), (Role.DECODE, "d", "nixl")):
        one = Registration(role, f"{name}:1", f"{name}:2", name, "m", "f", ours)
        registry.apply(msgspec.structs.replace(one, kv_connector=means), now=0)
    (node,) = registry.nodes(Role.DECODE, now=0)
    assert registry.misfit(node) == why
    assert bool(registry.partners(node, now=0)) is (why is None)


OURS = {
    "quantization": "none",
    "config.json": "blake2b:00",
    "generation_config.json": "absent",
    "weights": "blake2b:01",
    "adapter law": "blake2b:05",
}


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({}, ""),
        (OURS | {"quantization": "int8"}, ": quantization is none here and int8 there"),
        (
            OURS | {"config.json": "blake2b:02", "weights": "blake2b:03"},
            ": config.json is another one, weights is another one",
        ),
        (
            OURS | {"generation_config.json": "blake2b:04", "later": "x"},
            ": generation_config.json is only there, later is not told here and x there",
        ),
        (
            {name: OURS[name] for name in OURS if name != "adapter law"}
            | {"adapter sql": "blake2b:06"},
            ": adapter law is only here, adapter sql is only there",
        ),
    ],
)
def test_what_makes_two_fingerprints_differ_is_told_where_both_say_it(
    theirs: dict[str, str], said: str
) -> None:
    registry, kv = Registry(differ=layout_difference), plain(layout(16))
    for role, name, parts in ((Role.PREFILL, "p", theirs), (Role.DECODE, "d", OURS)):
        one = Registration(role, f"{name}:1", f"{name}:2", name, "m", f"f{name}", kv)
        registry.apply(msgspec.structs.replace(one, made_of=parts), now=0)
    (node,) = registry.nodes(Role.DECODE, now=0)
    assert registry.misfit(node) == f"fingerprint is fd here and fp on p:1{said}"


def test_kv_of_another_dtype_is_listed_by_name() -> None:
    ours = plain(layout(16))
    partners, misfit = pair({**ours, "dtype": "bfloat16"}, ours)
    assert partners == ()
    assert misfit == "dtype is uint8 here and bfloat16 on p:1"


def test_a_layout_that_cannot_be_read_fits_its_like_only() -> None:
    strange: Layout = {**plain(layout(16)), "block_size": "16"}
    assert pair(strange, dict(strange))[1] is None
    assert pair({"name": "x"}, plain(layout(16)))[0] == ()


def test_numbers_beyond_all_measure_fit_nobody_and_harm_nobody() -> None:
    """Pain: a forged registration must not end a proxy."""
    huge = 2**63
    first, second = (
        {"dtype": "f", "block_size": size, "kv_heads": huge, "block_bytes": [size * 16]}
        for size in (16, 32)
    )
    partners, misfit = pair(first, second)
    assert not partners
    assert misfit


def test_who_fits_is_looked_for_anew_when_another_kind_comes_or_goes() -> None:
    registry, ours = Registry(differ=layout_difference), plain(layout(16))
    for role, name in ((Role.PREFILL, "p"), (Role.DECODE, "d")):
        registry.apply(Registration(role, f"{name}:1", "", name, "m", "f", ours), now=0)
    (decode,) = registry.nodes(Role.DECODE, now=0)
    known = registry.partners(decode, now=0)
    assert registry.partners(decode, now=0) is known, "it was looked for once"
    larger = Registration(Role.PREFILL, "q:1", "", "q", "m", "f", plain(layout(32)))
    registry.apply(larger, now=0)
    assert [one.node_id for one in registry.partners(decode, now=0)] == ["p", "q"]
    registry.remove("q:1")
    assert registry.partners(decode, now=0) is registry.partners(decode, now=0)


@pytest.mark.parametrize(
    ("prefill", "decode", "why"),
    [
        ({"size": 1, "type": "a"}, {"size": 1, "type": "b"}, "type is b here and a on p:1"),
        ({"size": 1}, None, "kv_layout is None here and {'size': 1} on p:1"),
        (None, {"size": 1}, "kv_layout is {'size': 1} here and None on p:1"),
        (None, None, None),
    ],
)
def test_layouts_fit_if_they_are_equal_unless_told_otherwise(
    prefill: Layout | None, decode: Layout | None, why: str | None
) -> None:
    registry = Registry()
    for role, name, one in ((Role.PREFILL, "p", prefill), (Role.DECODE, "d", decode)):
        registry.apply(Registration(role, f"{name}:1", f"{name}:2", name, "m", "f", one), now=0)
    (node,) = registry.nodes(Role.DECODE, now=0)
    assert registry.misfit(node) == why
    assert len(registry.partners(node, now=0)) == (why is None)


def test_of_two_layouts_of_one_model_each_gets_its_own() -> None:
    registry = Registry()
    for role in Role:
        for size in (16, 32):
            one = Registration(role, f"{role}{size}:1", "h:2", f"{role}{size}", "m", "f")
            registry.apply(msgspec.structs.replace(one, kv_layout={"size": size}), now=0)
    for node in registry.all():
        (partner,) = registry.partners(node, now=0)
        assert partner.registration.kv_layout == node.registration.kv_layout
    assert len(registry.paired(Role.DECODE, now=0)) == 2


@pytest.mark.parametrize("ours", [Role.PREFILL, Role.DECODE])
def test_which_side_is_of_another_make_is_told(ours: Role) -> None:
    """vLLM's tells no name, so it may be meant for any model."""
    registry = Registry()
    for role in Role:
        made = ("id", "m", "f") if role is ours else ()
        registry.apply(Registration(role, f"{role}:1", f"{role}:2", *made), now=0)
    (node,) = registry.nodes(Role.DECODE, now=0)
    makes = "pdserve here and vLLM" if ours is Role.DECODE else "vLLM here and pdserve"
    why = f"it is {makes} on P:1: KV stays with nodes of one make"
    assert registry.misfit(node) == why

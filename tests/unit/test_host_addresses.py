"""Names with IPv4 and IPv6 addresses: where we listen, and what others call us."""

import socket

import pytest
import zmq

from discovery.ports import passive_address
from node.addresses import UnreachableAddress, advertised_host
from node.kv_events.encoding import EventEncoder
from node.kv_events.publisher import KvEventPublisher
from node.kv_events.settings import KvEventsConfig

IPV4, IPV6 = socket.AF_INET, socket.AF_INET6
NAMES = {"both": ("::1", "127.0.0.1"), "six": ("::1",), "four": ("127.0.0.1",)}


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system puts IPv6 first."""
    known = socket.getaddrinfo

    def look_up(host: str, port: int | None, **wanted: int) -> list[object]:
        return [one for name in NAMES.get(host, (host,)) for one in known(name, port, **wanted)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.mark.parametrize(
    ("host", "listens"),
    [
        ("both", (IPV4, "127.0.0.1")),
        ("six", (IPV6, "::1")),
        ("::", (IPV6, "::")),
        ("0.0.0.0", (IPV4, "0.0.0.0")),
    ],
)
def test_a_name_is_listened_at_by_its_ipv4_address(host: str, listens: tuple[int, str]) -> None:
    assert passive_address(host, 0, "--host") == listens


@pytest.mark.parametrize("elsewhere", ["192.0.2.1", "2001:db8::1"])
def test_an_address_of_another_machine_is_refused_by_the_name_of_its_flag(
    elsewhere: str,
) -> None:
    refusal = f"^--host {elsewhere}: this machine has no such address$"
    with pytest.raises(OSError, match=refusal):
        passive_address(elsewhere, 0, "--host")


@pytest.mark.parametrize(
    ("bound", "proxy", "told"),
    [
        ("0.0.0.0", "both", "127.0.0.1"),
        ("::", "both", "::1"),
        ("0.0.0.0", "six", "127.0.0.1"),
        ("::", "four", "::1"),
    ],
)
def test_a_node_tells_no_address_of_a_family_that_it_does_not_listen_at(
    bound: str, proxy: str, told: str
) -> None:
    assert advertised_host(bound, None, [f"{proxy}:30001"]) == told


def test_a_node_at_all_ipv6_addresses_is_reached_here_without_a_proxy() -> None:
    assert advertised_host("::", None, []) == "::1"


def test_a_proxy_elsewhere_by_the_other_family_only_is_a_refusal() -> None:
    with pytest.raises(UnreachableAddress, match=r"--host :: does not listen at .+: set"):
        advertised_host("::", None, ["192.0.2.1:30001"])
    assert advertised_host("::", "node-7", ["192.0.2.1:30001"]) == "node-7"


@pytest.mark.parametrize(
    ("name", "ipv6"),
    [("six", 1), ("[fe80:0:0:0:0:0:0:1]", 1), ("both", 0), ("nobody.invalid", 0)],
)
def test_kv_events_go_to_a_name_without_an_ipv4_address(name: str, ipv6: int) -> None:
    config = KvEventsConfig(enable_kv_cache_events=True, endpoint=f"tcp://{name}:5557")
    publisher = KvEventPublisher.open(config, EventEncoder(16), "127.0.0.1", "127.0.0.1")
    try:
        assert publisher._publisher.getsockopt(zmq.IPV6) == ipv6
    finally:
        publisher.close()

"""A proxy's name is tried at its IPv4 and at its IPv6 addresses."""

from dataclasses import dataclass, field

import pytest
import zmq

from discovery.dialler import TURN_S, Dialler

IPV4, IPV6 = "IPv4", "IPv6"


@dataclass
class Tries:
    """A socket on which nothing is sent."""

    connected: dict[str, str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    family: str = ""

    def setsockopt(self, option: int, value: object, /) -> None:
        assert option == zmq.IPV6
        self.family = IPV6 if value else IPV4

    def connect(self, addr: str) -> None:
        assert addr not in self.connected
        self.connected[addr] = self.family
        self.made.append(self.family)

    def disconnect(self, addr: str) -> None:
        del self.connected[addr]


def tries_at(proxy: str, *away: bool) -> list[str]:
    """Its families, one after the other; it is looked at once in each turn."""
    socket = Tries()
    dialler = Dialler.connect(socket, proxy, now=0)
    for number, one in enumerate(away, 1):
        dialler.check(away=one, now=number * TURN_S)
    assert list(socket.connected) == [f"tcp://{proxy}"]
    return socket.made


def test_a_name_that_does_not_answer_is_tried_at_its_other_address() -> None:
    assert tries_at("localhost:1", True, True, True) == [IPV4, IPV6, IPV4, IPV6]


def test_a_proxy_that_answers_is_left_alone_and_then_has_its_time_again() -> None:
    socket = Tries()
    dialler = Dialler.connect(socket, "proxy:1", now=0)
    dialler.check(away=False, now=9 * TURN_S)
    dialler.check(away=True, now=9.9 * TURN_S)
    assert socket.made == [IPV4]
    dialler.check(away=True, now=10 * TURN_S)
    assert socket.made == [IPV4, IPV6]


@pytest.mark.parametrize(
    ("proxy", "family"), [("127.0.0.1:1", IPV4), ("[::1]:1", IPV6), ("[fe80::1%eth0]:1", IPV6)]
)
def test_an_address_is_of_one_family(proxy: str, family: str) -> None:
    assert tries_at(proxy, True, True) == [family]

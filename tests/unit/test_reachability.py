"""A node says which proxies it does not reach, once, and when one is there after that."""

import logging
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import pytest
import zmq

from discovery.dialler import TURN_S, Dialler
from discovery.reachability import MOST_UNANSWERED, PATIENCE_S, SILENT, ProxyReachability
from discovery.replies import REPLY

PROXY = "the-proxy:1"
AWAY = f"no proxy is reached at {PROXY}: no work comes here from it"
AGAIN = f"the proxy at {PROXY} is there now"
UNHEARD = SILENT % (PROXY, MOST_UNANSWERED)
HEARD = f"the proxy at {PROXY} takes this node in now"
Said = Callable[[], list[str]]


@dataclass
class Sockets:
    """All that a test opens; the last is closed first."""

    open: ExitStack
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=zmq.Context)

    def of(self, kind: int) -> zmq.Socket[bytes]:
        return self.open.enter_context(self.context.socket(kind))

    def reach(self, dealer: zmq.Socket[bytes]) -> ProxyReachability:
        return self.open.enter_context(closing(ProxyReachability.of(dealer, PROXY, now=0)))

    def router(self, port: int = 0) -> tuple[zmq.Socket[bytes], int]:
        router = self.of(zmq.ROUTER)
        router.bind(f"tcp://127.0.0.1:{port or '*'}")
        endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return router, int(endpoint.rstrip(b"\0").rpartition(b":")[2])


@pytest.fixture
def sockets() -> Generator[Sockets]:
    with ExitStack() as stack:
        one = Sockets(stack)
        stack.callback(one.context.term)
        yield one


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.INFO, "discovery.reachability")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_proxy_that_is_never_there_is_told_of_once(sockets: Sockets, said: Said) -> None:
    reach = sockets.reach(sockets.of(zmq.DEALER))
    reach.check(now=PATIENCE_S - 0.1)
    assert said() == []
    for now in (PATIENCE_S, PATIENCE_S + 1, 99):
        reach.check(now=now)
    assert said() == [AWAY]


def test_one_that_comes_goes_and_comes_back(sockets: Sockets, said: Said) -> None:
    dealer = sockets.of(zmq.DEALER)
    dealer.setsockopt(zmq.RECONNECT_IVL, 10)
    reach, (router, port) = sockets.reach(dealer), sockets.router()
    stands(reach, dealer, port)
    reach.check(now=50)
    assert said() == []  # it was there in time
    router.close(linger=0)
    while reach.away_since is None:
        reach.check(now=60)
    reach.check(now=60 + PATIENCE_S - 1)
    assert said() == []
    reach.check(now=60 + PATIENCE_S)
    assert said() == [AWAY]
    sockets.router(port)
    while reach.away_since is not None:
        reach.check(now=99)
    reach.check(now=99)
    assert said() == [AWAY, AGAIN]


def stands(reach: ProxyReachability, dealer: zmq.Socket[bytes], port: int) -> None:
    """Nothing was said by that connection yet."""
    dealer.connect(f"tcp://127.0.0.1:{port}")
    while reach.away_since is not None:
        reach.check(now=1)


def hears(router: zmq.Socket[bytes], dealer: zmq.Socket[bytes], word: bytes) -> None:
    """The proxy answers what it is told, and that has arrived."""
    dealer.send(b"a registration")
    router.send_multipart([router.recv_multipart()[0], word])
    assert dealer.poll(10_000)


def test_a_proxy_that_answers_nothing_is_told_of_once_and_when_it_does(
    sockets: Sockets, said: Said
) -> None:
    dealer, (router, port) = sockets.of(zmq.DEALER), sockets.router()
    dealer.setsockopt(zmq.CONFLATE, 1)
    reach = sockets.reach(dealer)
    stands(reach, dealer, port)
    for _ in range(MOST_UNANSWERED - 1):
        reach.check(now=1, sent=True)
    assert said() == []
    hears(router, dealer, REPLY)
    for _ in range(MOST_UNANSWERED):
        reach.check(now=1, sent=True)
    assert said() == []  # the answer counted, and nine words behind it
    for _ in range(20):
        reach.check(now=1, sent=True)
    assert said() == [UNHEARD]
    for other in (b"\xc1", b"\xc0", b"\x80", b"\x81\xa5taken\x01"):
        hears(router, dealer, other)
        reach.check(now=1, sent=True)
    assert said() == [UNHEARD]
    hears(router, dealer, REPLY)
    reach.check(now=1, sent=True)
    assert said() == [UNHEARD, HEARD]


def test_who_says_nothing_waits_for_no_answer(sockets: Sockets, said: Said) -> None:
    """An engine that hangs is not announced; and one that is away has told of that."""
    dealer, (_, port) = sockets.of(zmq.DEALER), sockets.router()
    reach = sockets.reach(dealer)
    for _ in range(2 * MOST_UNANSWERED):
        reach.check(now=0, sent=True)
    stands(reach, dealer, port)
    for _ in range(MOST_UNANSWERED - 1):
        reach.check(now=1, sent=True)
    reach.check(now=1, sent=False)
    for _ in range(MOST_UNANSWERED - 1):
        reach.check(now=1, sent=True)
    assert said() == []


@dataclass
class ByIpv4:
    """A dealer to a proxy that has no IPv6 address."""

    dealer: zmq.Socket[bytes]
    ipv6: int = 0

    def setsockopt(self, option: int, value: int, /) -> None:
        assert option == zmq.IPV6
        self.ipv6 = value

    def connect(self, addr: str) -> None:
        if not self.ipv6:
            self.dealer.connect(addr)

    def disconnect(self, addr: str) -> None:
        self.dealer.disconnect(addr)


def test_a_connection_that_was_made_while_it_was_given_up_does_not_count(
    sockets: Sockets,
) -> None:
    dealer, (router, port) = sockets.of(zmq.DEALER), sockets.router()
    reach = sockets.reach(dealer)
    dialler = Dialler.connect(ByIpv4(dealer), f"localhost:{port}", now=0)
    dealer.send(b"")
    assert router.poll(5000)  # the connection stands, and `reach` does not know yet
    assert dialler.check(away=True, now=TURN_S)
    reach.begin_anew()
    reach.check(now=2 * TURN_S)
    assert reach.away_since is not None

"""A connector as the engine's thread uses it: two halves, and queues to the transfer thread.

One transfer thread in the engine process owns the mover, the sockets, the leases and the books;
the engine's loop never waits for it, and a long step delays no peer. A second thread only
checks whether the first is late, and handles leases in that case.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from kv_transfer.api import Arrived, Loan, LoanRequest, Sealed, Settled
from kv_transfer.errors import LayoutMismatch
from kv_transfer.ledger.claims import PullClaims
from kv_transfer.thread.devices import enter_device
from kv_transfer.thread.service import TransferService
from kv_transfer.ticket import CacheHint, KvTicket

SWEEP_S = 0.25

log = logging.getLogger(__name__)
News = TypeVar("News")


class TransferThreadDied(RuntimeError):
    """Raised by `check`: nothing will settle or arrive any more, so the node has to end."""


@dataclass(slots=True)
class ThreadedSource:
    """The prefill half; every call but `poll` is a command for the next turn."""

    service: TransferService

    def offer(self, request_id: str, outer_id: str | None = None) -> KvTicket:
        """The ticket is created here; the lease opens before any sink can ask for it."""
        me = self.service.identity
        ticket_id = f"{me.engine_id}/{request_id}"
        self.service.post(partial(self.service.offers.offer, ticket_id, outer_id))
        return KvTicket(ticket_id, me.engine_id, me.host, me.port, me.fingerprint)

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        """See KvSource."""
        if blocks:
            self.service.post(partial(self.service.offers.extend, ticket_id, tuple(blocks)))

    def seal(self, ticket_id: str, sealed: Sealed) -> None:
        """See KvSource."""
        self.service.post(partial(self._seal, ticket_id, sealed))

    def withdraw(self, ticket_id: str) -> None:
        """Take the blocks back; takes effect with its Settled."""
        self.service.post(partial(self.service.offers.withdraw, ticket_id))

    def loan_requests(self) -> Sequence[LoanRequest]:
        """Loan requests since the last call."""
        return _drain(self.service.queues.loan_requests)

    def lend(self, asked: LoanRequest, name: str, blocks: Sequence[int], sealed: Sealed) -> str:
        """Posts one command that offers, seals and answers."""
        ticket_id = f"{self.service.identity.engine_id}/{name}"
        self.service.post(partial(self._lend, asked, ticket_id, tuple(blocks), sealed))
        return ticket_id

    def decline(self, asked: LoanRequest) -> None:
        """See KvSource."""
        self.service.post(partial(self.service.offers.decline, asked))

    def poll(self) -> Sequence[Settled]:
        """What settled since the last call; also says that the engine goes on."""
        self.service.books.engine_seen_at = self.service.clock()
        return _drain(self.service.queues.settled)

    def close(self) -> None:
        """Withdraw everything."""
        self.service.post(self.service.offers.withdraw_all)

    def _seal(self, ticket_id: str, sealed: Sealed) -> None:
        self.service.offers.seal(ticket_id, sealed, now=self.service.clock())

    def _lend(
        self, asked: LoanRequest, ticket_id: str, blocks: Sequence[int], sealed: Sealed
    ) -> None:
        now = self.service.clock()
        self.service.offers.lend(asked, ticket_id, blocks, sealed, now=now)


@dataclass(slots=True)
class ThreadedSink:
    """The decode half; every call but `poll` is a command for the next turn."""

    service: TransferService
    claims: PullClaims

    def hold(self, ticket: KvTicket) -> None:
        """Keep its lease alive."""
        self.service.post(partial(self._hold, ticket))

    def pull(self, ticket: KvTicket, into: Sequence[int], skip: int = 0) -> None:
        """Refuse at once what can be refused at once; `poll` reports the rest."""
        try:
            self.claims.take(ticket)
        except LayoutMismatch:
            self.abandon(ticket)
            raise
        self.service.post(partial(self._pull, ticket, tuple(into), skip))

    def abandon(self, ticket: KvTicket) -> None:
        """See KvSink."""
        self.service.post(partial(self._abandon, ticket))

    def release_claim(self, ticket: KvTicket) -> None:
        """See KvSink."""
        self.service.post(partial(self._leave, ticket))

    def request_loan(self, name: str, cache: CacheHint, keys: Sequence[bytes]) -> None:
        """`loans` returns the answer."""
        self.service.post(partial(self._ask, name, cache, tuple(keys)))

    def loans(self) -> Sequence[Loan]:
        """Answers since the last call."""
        return _drain(self.service.queues.loans)

    def poll(self) -> Sequence[Arrived]:
        """Pulls that ended since the last call."""
        news = _drain(self.service.queues.arrived)
        self.claims.drop(news)
        return news

    def close(self) -> None:
        """Cancel every pull."""
        self.service.post(self._abandon_all)

    def _ask(self, name: str, cache: CacheHint, keys: Sequence[bytes]) -> None:
        self.service.pulls.request_loan(name, cache, keys, now=self.service.clock())

    def _hold(self, ticket: KvTicket) -> None:
        self.service.pulls.hold(ticket, now=self.service.clock())

    def _pull(self, ticket: KvTicket, into: Sequence[int], skip: int) -> None:
        self.service.pulls.pull(ticket, into, skip, now=self.service.clock())

    def _abandon(self, ticket: KvTicket) -> None:
        self.service.pulls.abandon(ticket, now=self.service.clock())

    def _leave(self, ticket: KvTicket) -> None:
        self.service.pulls.release_claim(ticket, now=self.service.clock())

    def _abandon_all(self) -> None:
        self.service.pulls.abandon_all(now=self.service.clock())


@dataclass(slots=True)
class Connector:
    """Both halves, and the threads that do their work from `start` to `stop`."""

    service: TransferService
    source: ThreadedSource
    sink: ThreadedSink
    _threads: list[threading.Thread] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None

    @classmethod
    def over(cls, service: TransferService) -> "Connector":
        """Both halves over one service."""
        claims = PullClaims(service.identity.fingerprint)
        return cls(service, ThreadedSource(service), ThreadedSink(service, claims))

    def start(self) -> None:
        """Run turns in one thread and the sweep in another."""
        for name, work in (("transfer", self._turn), ("sweep", self._sweep)):
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End every offer and pull, and the threads; idempotent."""
        if not self._stopping.is_set():
            self.service.post(self._stopping.set)
            self._stopping.set()  # in case no thread is left to run the command
            for thread in self._threads:
                thread.join()

    def check(self) -> None:
        """Raise TransferThreadDied if a thread has failed."""
        if self._failure is not None:
            raise TransferThreadDied(repr(self._failure)) from self._failure

    def _turn(self) -> None:
        enter_device(self.service.regions)
        while not self._stopping.is_set():
            self.service.turn()
        self.service.end()
        self.service.close()

    def _sweep(self) -> None:
        while not self._stopping.wait(SWEEP_S):
            self.service.sweep()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # `check` raises it in the engine's loop
            log.exception("the %s thread died", threading.current_thread().name)
            self._failure = error
            self.service.wake_engine()


def _drain(news: "deque[News]") -> "list[News]":
    return [news.popleft() for _ in range(len(news))]

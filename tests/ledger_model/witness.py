"""Who sees a node's halves of the connector being used, and says what may not be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from engine.request import Request, RequestId, tokens_digest
from kv_transfer.api import (
    Arrived,
    KvSink,
    KvSource,
    Loan,
    LoanRequest,
    Outcome,
    Sealed,
    Settled,
)
from kv_transfer.ticket import CacheHint, KvTicket
from tests.fakes.engine import FakeEngine
from tests.fakes.model import TOKEN_BYTES, extend


@lru_cache(maxsize=256)
def kv_of(tokens: tuple[int, ...]) -> bytes:
    """What the model writes for these."""
    kv = b""
    for token in tokens:
        kv = extend(kv, token)
    return kv


def block_of(engine: FakeEngine, block: int) -> bytes:
    size = engine.info.block_size * TOKEN_BYTES
    return bytes(engine.memory[block * size : (block + 1) * size])


def check_bytes(engine: FakeEngine, blocks: Sequence[int], request: Request, what: str) -> None:
    """These blocks have the KV of the prompt's beginning, or of all of it."""
    wanted = kv_of(tuple(request.tokens))
    found = b"".join(block_of(engine, block) for block in blocks)
    known = min(len(found), len(wanted))
    assert found[:known] == wanted[:known], f"{what}: wrong bytes in {blocks}"


KvByKey = Mapping[bytes, bytes]
"""What a full block has to be, by its name."""


def check_keys(
    engine: FakeEngine, blocks: Sequence[int], keys: Sequence[bytes], kv: KvByKey, what: str
) -> None:
    """These blocks are what they are said to be."""
    for block, key in zip(blocks, keys, strict=True):
        assert block_of(engine, block) == kv[key], f"{what}: wrong bytes in {block}"


@dataclass
class Lent:
    """An offer as its node sees it: of a request, or of what is known by these keys."""

    request: Request | None = None
    keys: Sequence[bytes] = ()
    blocks: list[int] = field(default_factory=list)
    sealed: bool = False


@dataclass
class WatchedSource:
    """Every offer settles once; what is extended is written, full, and stays its request's."""

    inner: KvSource
    engine: FakeEngine
    kv_by_key: KvByKey
    open: dict[str, Lent] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    num_lent: int = 0

    def offer(self, request_id: str, outer_id: str | None = None) -> KvTicket:
        ticket = self.inner.offer(request_id, outer_id)
        assert ticket.ticket_id not in self.open, "an offer's name is used twice"
        request = self.engine.scheduler.find(RequestId(request_id)).request
        self.open[ticket.ticket_id] = Lent(request)
        return ticket

    def extend(self, ticket_id: str, blocks: Sequence[int]) -> None:
        if lent := self.open.get(ticket_id):
            lent.blocks += blocks
            assert lent.request is not None
            check_bytes(self.engine, lent.blocks, lent.request, "published")
        self.inner.extend(ticket_id, blocks)

    def seal(self, ticket_id: str, sealed: Sealed) -> None:
        if lent := self.open.get(ticket_id):
            lent.sealed = True
            assert len(lent.blocks) == self.engine.kv.blocks_for(sealed.num_tokens), "sealed"
        self.inner.seal(ticket_id, sealed)

    def withdraw(self, ticket_id: str) -> None:
        self.inner.withdraw(ticket_id)

    def loan_requests(self) -> Sequence[LoanRequest]:
        return self.inner.loan_requests()

    def lend(self, asked: LoanRequest, name: str, blocks: Sequence[int], sealed: Sealed) -> str:
        ticket_id = self.inner.lend(asked, name, blocks, sealed)
        assert ticket_id not in self.open, "a loan's name is used twice"
        keys = asked.keys[: len(blocks)]
        assert sealed.tokens_digest == keys[-1], "lent, and called something else"
        self.open[ticket_id] = Lent(keys=keys, blocks=list(blocks), sealed=True)
        self.num_lent += 1
        return ticket_id

    def decline(self, asked: LoanRequest) -> None:
        self.inner.decline(asked)

    def poll(self) -> Sequence[Settled]:
        news = self.inner.poll()
        for settled in news:
            assert settled.ticket_id in self.open, "settled twice, or never offered"
            del self.open[settled.ticket_id]
            self.outcomes[settled.ticket_id] = settled.outcome
        return news

    def close(self) -> None:
        self.inner.close()

    def check(self) -> None:
        """What is lent belongs to who lent it, and has not changed."""
        for lent in self.open.values():
            if lent.request is None:
                held = [loan.pinned for loan in self.engine.lending._loans.values()]
                assert lent.blocks in held, "lent, and held for nobody"
                check_keys(self.engine, lent.blocks, lent.keys, self.kv_by_key, "lent")
                continue
            theirs = self.engine.blocks(lent.request.request_id)
            assert list(theirs[: len(lent.blocks)]) == lent.blocks, "lent, and not his"
            check_bytes(self.engine, lent.blocks, lent.request, "lent")


@dataclass
class WatchedSink:
    """Every pull arrives once, is written to in between only, and is right if it says so."""

    inner: KvSink
    engine: FakeEngine
    was_delivered: Callable[[KvTicket], bool]
    kv_by_key: KvByKey
    wanted: dict[str, Sequence[bytes]] = field(default_factory=dict)  # by the question's name
    lent_keys: dict[str, Sequence[bytes]] = field(default_factory=dict)  # by ticket
    pulled: dict[str, tuple[KvTicket, Sequence[int], int]] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)  # and their Arrived not read yet
    news: list[Arrived] = field(default_factory=list)

    def hold(self, ticket: KvTicket) -> None:
        self.inner.hold(ticket)

    def pull(self, ticket: KvTicket, into: Sequence[int], skip: int = 0) -> None:
        self.inner.pull(ticket, into, skip)
        taken = [block for block in into[skip:] if block in self._lent()]
        assert not taken, f"blocks {taken} are owned by two pulls"
        self.pulled[ticket.ticket_id] = ticket, into, skip

    def abandon(self, ticket: KvTicket) -> None:
        self.inner.abandon(ticket)

    def release_claim(self, ticket: KvTicket) -> None:
        self.inner.release_claim(ticket)

    def request_loan(self, name: str, cache: CacheHint, keys: Sequence[bytes]) -> None:
        assert name not in self.wanted, "a question's name is used twice"
        self.wanted[name] = keys
        self.inner.request_loan(name, cache, keys)

    def loans(self) -> Sequence[Loan]:
        loans = self.inner.loans()
        for loan in loans:
            keys = self.wanted.pop(loan.name)  # asked once, answered once
            if loan.ticket is not None:
                self.lent_keys[loan.ticket.ticket_id] = keys[: loan.num_blocks]
        return loans

    def poll(self) -> Sequence[Arrived]:
        news = self.inner.poll()
        for arrived in news:
            del self.pulled[arrived.ticket_id]
            self.over.remove(arrived.ticket_id)
            self.news.append(arrived)
        return news

    def close(self) -> None:
        self.inner.close()

    def may_write(self, block: int) -> None:
        """Asked before every piece that is copied."""
        assert block in self._lent(), f"block {block} is written to, and lent to no pull"
        assert any(block in blocks for blocks in self._held()), f"block {block} is nobody's"

    def ended(self, arrived: Arrived) -> None:
        """Called when the book says so: from now on nothing may be written."""
        name, sealed = arrived.ticket_id, arrived.sealed
        assert name in self.pulled, "arrived, and was never pulled"
        assert name not in self.over, "arrived twice"
        self.over.add(name)
        if sealed is None:
            return
        ticket, into, _ = self.pulled[name]
        assert self.was_delivered(ticket), "arrived, and was not delivered"
        if (keys := self.lent_keys.get(name)) is not None:
            check_keys(self.engine, into, keys, self.kv_by_key, "borrowed")
            return
        held = self.engine.sequences.reserved.values()
        (request,) = [seq.request for seq in held if list(seq.blocks) == list(into)]
        if sealed.tokens_digest == tokens_digest(request):
            check_bytes(self.engine, into, request, "arrived")

    def check(self) -> None:
        """What is pulled into is reserved for somebody."""
        held = self._held()
        for name, (_, into, _) in self.pulled.items():
            assert list(into) in held, f"{name} is pulled into blocks that nobody holds"

    def _held(self) -> list[list[int]]:
        """Blocks that wait for what is pulled."""
        reserved = [list(seq.blocks) for seq in self.engine.sequences.reserved.values()]
        loans = self.engine.lending._loans.values()
        return [*reserved, *(loan.fresh for loan in loans)]

    def _lent(self) -> set[int]:
        """Where reads may write."""
        running = [one for name, one in self.pulled.items() if name not in self.over]
        return {block for _, into, skip in running for block in into[skip:]}

"""What a proxy, a network and time can do to three nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from api.generator import Leg
from engine.request import Request, RequestId, Sampling
from kv_transfer.checking import CheckLevel
from kv_transfer.ticket import CacheHint, KvTicket
from tests.ledger_model.memory import Reading
from tests.ledger_model.network import Pipe
from tests.ledger_model.node import BLOCK_SIZE, Call, Node, World, ticket_of

ADDRESSES = (("a", 1), ("b", 2), ("c", 3))
STEP_S = 0.1
MOST_TURNS = 400
SAMPLING = Sampling(max_tokens=3, seed=7)


def prompt(number: int) -> tuple[int, ...]:
    """Of two families with the same beginnings; 1 to 18 tokens."""
    family, length = number % 2, 1 + number // 2 % 18
    return tuple(range(family, family + length))


@dataclass
class Play:
    """Each act takes any number, and does what is possible of that number."""

    cuts: bool = True
    level: CheckLevel = CheckLevel.OFF
    block_sizes: Sequence[int] = (BLOCK_SIZE,) * len(ADDRESSES)
    calls: list[Call] = field(default_factory=list)
    requests: int = 0

    def __post_init__(self) -> None:
        sizes = dict(zip(ADDRESSES, self.block_sizes, strict=True))
        self.world = World(cuts=self.cuts, level=self.level, block_sizes=sizes)
        self.nodes = [Node(address, self.world) for address in ADDRESSES]
        self.hints = [node.hint for node in self.nodes]  # of all nodes that there ever were

    # the proxy
    def prefill(self, number: int, known_at: int | None = None) -> Call:
        """A prompt, on one of the nodes, under one of few outer ids.

        `known_at`: another node may have it in its cache, or did before it was started anew.
        """
        node = self.nodes[number % len(self.nodes)]
        cache = None if known_at is None else self._hint(node, known_at)
        leg = Leg(hold=True, keep_open=True, outer_id=f"outer{number % 3}", cache=cache)
        call = node.begin(self._request(prompt(number // len(self.nodes))), leg)
        self.calls.append(call)
        return call

    @property
    def tickets(self) -> list[Call]:
        """Prefill legs that were given theirs."""
        return [call for call in self.calls if ticket_of(call)]

    def decode(self, number: int, *, by_outer_id: bool = False) -> Call | None:
        """The other leg of a prompt that has its ticket, on another node; again, too.

        Its driver keeps the prefill leg open or not: who lets go then leaves it to others.
        """
        ready = self.tickets
        if not ready:
            return None
        first = ready[number % len(ready)]
        ticket = ticket_of(first)
        assert ticket is not None
        if by_outer_id and first.leg.outer_id:
            ticket = KvTicket(first.leg.outer_id, None, ticket.host, ticket.port, None)
        return self._decode(first, ticket, first.request.prompt, number // len(ready))

    def hand_over(self, number: int, messages: int, pieces: int) -> None:
        """Both legs of a prompt, as far as so many messages and pieces take them."""
        first = self.prefill(number)
        first.node.compute()
        if (ticket := ticket_of(first)) is None:
            return
        second = self._decode(first, ticket, first.request.prompt)
        for _ in range(messages):
            for node in (first.node, second.node):
                node.compute()
                node.shell.turn()
            self.carry(-1)
        for _ in range(pieces):
            self.copy(-1)

    def loan(self, number: int, messages: int) -> None:
        """What one node has run is asked for by another, as far as so many messages take it."""
        node = self.nodes[number % len(self.nodes)]
        request = self._request(prompt(number // len(self.nodes)))
        node.begin(request, Leg())
        for _ in range(SAMPLING.max_tokens + len(request.prompt)):
            node.compute()
        asking = self.nodes[(number + 1) % len(self.nodes)]
        leg = Leg(hold=True, keep_open=True, cache=node.hint)
        self.calls.append(asking.begin(self._request(request.prompt), leg))
        for _ in range(messages):
            for one in (asking, node):
                one.compute()
                one.shell.turn()
            self.carry(-1)

    def misfit(self, number: int) -> Call | None:
        """A decode leg for another prompt than its ticket's, or for one that never fits."""
        ready = self.tickets
        if not ready:
            return None
        first = ready[number % len(ready)]
        ticket = ticket_of(first)
        assert ticket is not None
        longer = first.request.prompt + tuple(range(4 if number % 2 else 400))
        return self._decode(first, ticket, longer)

    def abort(self, number: int) -> None:
        """Close a leg."""
        if self.calls:
            call = self.calls.pop(number % len(self.calls))
            call.node.abort(call)

    # nodes, memory, messages, time
    def compute(self, number: int) -> None:
        """A node's engine goes on."""
        self.nodes[number % len(self.nodes)].compute()

    def turn(self, number: int) -> None:
        """A node's transfer thread goes on."""
        self.nodes[number % len(self.nodes)].shell.turn()

    def sweep(self, number: int) -> None:
        """A node's transfer thread hangs, and another one sees to what is late."""
        self.nodes[number % len(self.nodes)].shell.sweep()

    def restart(self, number: int) -> None:
        """A node is killed, and another one starts in its place."""
        index = number % len(self.nodes)
        old = self.nodes[index]
        old.host.alive = False
        self.world.network.vanish(old.shell.name, old.address)
        self.calls = [call for call in self.calls if call.node is not old]
        self.nodes[index] = Node(old.address, self.world)
        self.hints.insert(0, self.nodes[index].hint)

    def carry(self, number: int) -> None:
        """A message arrives."""
        if pipe := self._pipe(number):
            self._carry(pipe)

    def drop(self, number: int) -> None:
        """A message is lost."""
        if pipe := self._pipe(number):
            pipe.frames.popleft()

    def repeat(self, number: int) -> None:
        """A message arrives, and will arrive again."""
        if pipe := self._pipe(number):
            pipe.frames.appendleft(pipe.frames[0])
            self._carry(pipe)

    def copy(self, number: int) -> None:
        """A piece of a read is copied."""
        if readings := self.readings:
            node, reading = readings[number % len(readings)]
            node.shell.mover.go_on(reading)

    def spoil(self, number: int) -> None:
        """A piece of a read is copied, and a bit of it is another one then."""
        if readings := self.readings:
            node, reading = readings[number % len(readings)]
            node.shell.mover.go_on(reading, spoil=True)

    def wait(self, seconds: float) -> None:
        """Time passes, and nobody does anything."""
        self.world.now += seconds

    def absence(self, number: int, seconds: float) -> None:
        """A node is stopped, and hears later of what the others did meanwhile."""
        away = self.nodes[number % len(self.nodes)]
        for _ in range(round(seconds / STEP_S)):
            self.world.now += STEP_S
            self.flow(without=away)
        away.shell.turn(away=True)

    def suspend(self, seconds: float) -> None:
        """Their machine sleeps: all of them were away at the same time."""
        self.world.now += seconds
        for node in self.nodes:
            node.shell.turn(away=True)

    def flow(self, without: Node | None = None) -> bool:
        """All that can go on does, for one round; False when there was nothing."""
        before = [len(call.events) for call in self.calls]
        awake = [node for node in self.nodes if node is not without]
        pipes = [one for one in self.messages if not (without and self._ends_at(one, without))]
        readings = [one for one in self.readings if one[0] is not without]
        for pipe in pipes:
            while pipe.frames:
                self._carry(pipe)
        for node, reading in readings:
            while reading in node.shell.mover.readings:
                node.shell.mover.go_on(reading)
        for node in awake:
            node.compute()
            node.shell.turn()
        told = before != [len(call.events) for call in self.calls]
        busy = not all(node.loop.idle for node in self.nodes)
        return bool(pipes or readings or told or busy)

    def check(self) -> None:
        """What holds at any time."""
        for node in self.nodes:
            node.check()

    def calm(self) -> None:
        """No message is lost any more, and no time passes."""
        for _ in range(MOST_TURNS):
            if not self.flow():
                self.check()
                return
        raise AssertionError("it goes on for ever")

    def _hint(self, node: Node, number: int) -> CacheHint:
        others = [hint for hint in self.hints if hint.address != node.address]
        return others[number % len(others)]

    def _request(self, tokens: Sequence[int]) -> Request:
        self.requests += 1
        return Request(RequestId(f"r{self.requests}"), tuple(tokens), SAMPLING)

    def _decode(
        self, first: Call, ticket: KvTicket, tokens: Sequence[int], number: int = 0
    ) -> Call:
        nodes = [one for one in self.nodes if one.address != first.node.address]
        node, keep = nodes[number % len(nodes)], bool(number // len(nodes) % 2)
        leg = Leg(ticket=ticket, keep_open=keep, elsewhere=keep)
        call = node.begin(self._request(tokens), leg)
        self.calls.append(call)
        return call

    def _carry(self, pipe: Pipe) -> None:
        to = [node for node in self.nodes if self._ends_at(pipe, node)]
        for node in to:
            node.shell.begin()
        if not pipe.frames:
            return  # its connection was closed
        frame = self.world.network.carry(pipe)
        for node in to:
            if pipe.goes_up:
                node.shell.asked(pipe.peer, frame)
            else:
                node.shell.answered(pipe.address, frame)

    def _ends_at(self, pipe: Pipe, node: Node) -> bool:
        if pipe.goes_up:
            return node.address == pipe.address
        return node.shell.name == pipe.peer

    @property
    def messages(self) -> list[Pipe]:
        """What is on its way."""
        return self.world.network.pipes

    def _pipe(self, number: int) -> Pipe | None:
        pipes = self.messages
        return pipes[number % len(pipes)] if pipes else None

    @property
    def readings(self) -> list[tuple[Node, Reading]]:
        return [(node, one) for node in self.nodes for one in node.shell.mover.readings]

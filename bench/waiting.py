"""`python -m bench.waiting`: what those that wait cost those that run.

A prompt that waits for its turn has an offer at its prefill node, and one that waits for room
at a decode node is held there. Both are looked after at every turn of the transfer thread,
which shares the interpreter with the engine; a decode node looks for room at every step, and
so does the scheduler in its queue. None of that should take longer because more of them wait,
when nothing is due for them. No sockets, no model.
"""

import statistics
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from api.generator import Leg
from decode_node.worker import DecodeWorker
from engine.api import Engine
from engine.request import Request, RequestId, Sampling
from engine.scheduling.chunk import SampledTokens
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.sequence_manager import Limits, SequenceManager
from kv_transfer.api import KvSink, Sealed
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.offers import OfferBook
from kv_transfer.ledger.pulls import PullBook
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import Hello, Look, Welcome

WAITING = (10, 1000, 5000)
TURNS = 50
SEATS, PROMPT, ANSWER, BLOCK = 64, 64, 1000, 16
MICRO = 1e6
LAYOUT = KvLayout("bytes", 1, 1, (4,))
HELLO = Hello("model", LAYOUT)


def main() -> None:
    """Print a line for each number of waiting requests."""
    for count in WAITING:
        offers, pulls, steps = offers_us(count), pulls_us(count), schedule_us(count)
        sys.stdout.write(
            f"{count:5} wait: {offers:.0f} us a turn for their offers, {pulls:.0f} us for held "
            f"tickets; {no_room_us(count):.0f} us a step for jobs without room, {steps:.0f} us "
            f"for the schedule of {SEATS}\n"
        )
        sys.stdout.flush()


def offers_us(count: int) -> float:
    """Median microseconds of a turn in which `count` sealed offers wait for their sink."""
    welcome = Welcome("engine", HELLO.fingerprint, LAYOUT, (), (), "machine")
    book, sink = OfferBook(lambda: welcome, HELLO.fingerprint, LAYOUT, "engine"), b"sink"
    book.handle_message(sink, HELLO, now=0)
    for number in range(count):
        ticket = str(number)
        book.offer(ticket, None)
        book.extend(ticket, [2 * number, 2 * number + 1])
        book.seal(ticket, Sealed(2 * BLOCK, 0), now=0)
        book.handle_message(sink, Look(ticket, "engine", 0), now=0)

    def turn() -> None:
        book.flush()
        book.missing_checksums(8)
        book.expire(0)
        book.flush()

    return _median_us(turn)


def pulls_us(count: int) -> float:
    """Median microseconds of a turn in which `count` tickets are held and none is due."""
    book = PullBook(HELLO)
    for number in range(count):
        book.hold(KvTicket(str(number), "engine", "h", 1, HELLO.fingerprint), now=0)
    return _median_us(lambda: book.tick(0))


def no_room_us(count: int) -> float:
    """Median microseconds of a decode node's look for room that `count` jobs do not find."""
    full = SimpleNamespace(
        info=SimpleNamespace(prefix_cache=False, block_size=BLOCK),
        load=SimpleNamespace(running=SEATS),
        reserve=lambda _: None,
    )
    sink = SimpleNamespace(poll=lambda: (), hold=lambda _: None)
    worker = DecodeWorker(cast("Engine", full), cast("KvSink", sink), lambda: 0.0)
    for number in range(count):
        ticket = KvTicket(str(number), "engine", "h", 1, HELLO.fingerprint)
        request = Request(RequestId(str(number)), (1,) * PROMPT)
        worker.submit(request, Leg(ticket=ticket, elsewhere=True), 0.0)
    return _median_us(worker.collect)


def schedule_us(count: int) -> float:
    """Median microseconds of `schedule` and `commit` of SEATS decodes while `count` wait."""
    room = SequenceManager(KvManager(SEATS * SEATS, BLOCK), Limits(256, SEATS))
    scheduler = Scheduler(room)
    for number in range(SEATS + count):
        request = Request(RequestId(str(number)), (1,) * PROMPT, Sampling(ANSWER))
        scheduler.add(Sequence(request))

    def step() -> None:
        scheduler.schedule()
        chunks = [chunk for chunk in scheduler.batch if chunk.samples]
        scheduler.commit({chunk.seq.request_id: SampledTokens([5]) for chunk in chunks})

    while len(room.running) < SEATS:
        step()
    return _median_us(step)


def _median_us(turn: Callable[[], object]) -> float:
    times = list[float]()
    for _ in range(TURNS):
        began = time.perf_counter()
        turn()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * MICRO


if __name__ == "__main__":
    main()

"""Prompts of one real engine that go on at another, by a connector inside this process."""

from collections.abc import Sequence

from engine.request import Request, RequestId
from engine.torch_engine import TorchEngine
from kv_transfer.api import Arrived, Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.local.connector import LocalSink, LocalSource
from node.identity import layout_of
from tests.fakes.driver import drain, park

AT = ("source", 1)


def fetch(source: TorchEngine, sink: TorchEngine, request: Request, name: str) -> int:
    """With checksums of all bytes; how many leading tokens were there already."""
    facts = source.kv_regions, "same", float, layout_of(source), CheckLevel.FULL
    here = LocalSource(name, AT, *facts)
    there = LocalSink({AT: here}, sink.kv_regions, "same", float, layout=layout_of(sink))
    reserved = sink.reserve(request)
    assert reserved is not None
    ticket = here.offer(request.request_id)
    skip = reserved.filled // sink.info.block_size
    there.pull(ticket, into=reserved.blocks, skip=skip)
    here.extend(ticket.ticket_id, source.blocks(request.request_id))
    here.seal(ticket.ticket_id, Sealed(len(request.tokens), 0))
    arrived: Sequence[Arrived] = ()
    while not arrived:
        arrived = there.poll()
    assert arrived[0].error is None
    source.release(request.request_id)
    return reserved.filled


def split(
    source: TorchEngine, sink: TorchEngine, asked: list[Request]
) -> tuple[int, list[int]]:
    """The tokens that needed no transfer, and all that was said."""
    first, known, said = park(source, asked), 0, dict[RequestId, list[int]]()
    for request in asked:
        name = request.request_id
        known += fetch(source, sink, request, f"engine-{len(said)}")
        booked = sink.resume(name, [first[name]])
        said[name] = [token for one in booked for token in one.tokens]
    sink.schedule()
    for name, rest in drain(sink).items():
        said[name] += rest
    return known, [token for request in asked for token in said[request.request_id]]

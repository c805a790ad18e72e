"""Which prompt gets what is left of a batch, among those that run and those that wait."""

from engine.request import Request, RequestId, Sampling
from tests.fakes.engine import FakeEngine


def ask(name: str, length: int) -> Request:
    return Request(RequestId(name), tuple(f"{name:>{length}}".encode()[::-1]), Sampling(1))


def batch(engine: FakeEngine) -> dict[str, int]:
    """The tokens of each in the batch that is chosen now."""
    engine.schedule()
    return {chunk.seq.request_id: chunk.length for chunk in engine.scheduler.batch}


def test_one_that_waits_does_not_pass_a_shorter_one_that_runs() -> None:
    engine = FakeEngine(blocks=1024, chunk=16)
    for name, length in (("longest", 400), ("short", 30)):
        engine.generate(ask(name, length))
    engine.turn()
    engine.generate(ask("middling", 26))
    assert batch(engine) == {"longest": 8, "short": 8}


def test_behind_a_refused_reservation_only_those_ahead_of_it_are_admitted() -> None:
    engine = FakeEngine(blocks=16, block_size=1, chunk=64, watermark=0)
    engine.prefill(ask("parked", 10))
    engine.turn()
    for name, length in (("a", 7), ("b", 8)):
        engine.prefill(ask(name, length))
    assert engine.reserve(ask("large", 14)) is None
    engine.generate(ask("later", 2))
    engine.release(RequestId("parked"))
    assert batch(engine) == {"a": 7, "b": 8}

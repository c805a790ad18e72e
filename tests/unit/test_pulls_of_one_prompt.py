"""A prompt that another job is pulling is waited for, if its blocks will be of use."""

from dataclasses import replace

import pytest

from api.generator import TokenEvent
from engine.request import Request, RequestId, Sampling
from tests.unit.test_decode_worker import Pair

FIRST, SECOND = RequestId("first"), RequestId("second")
LONG, ONE_BLOCK = (1, 2, 3, 4, 5), (1, 2, 3, 4)


def asked(name: RequestId, prompt: tuple[int, ...] = LONG, salt: str = "") -> Request:
    return Request(name, prompt, Sampling(2), cache_salt=salt)


def test_a_job_waits_for_its_prompt_and_its_own_ticket_does_not_run_out() -> None:
    pair = Pair()
    tickets = [pair.source.offer(name) for name in (FIRST, SECOND)]
    for name, ticket in zip((FIRST, SECOND), tickets, strict=True):
        pair.submit(asked(name), ticket)
    pair.tick()
    assert (pair.node.decode.num_pulling, pair.node.decode.num_waiting) == (1, 1)
    pair.source.extend(tickets[1].ticket_id, [2])
    pair.seal(tickets[1], asked(SECOND))
    pair.wait(50)
    pair.source.extend(tickets[0].ticket_id, [4])
    pair.seal(tickets[0], asked(FIRST))
    said = [name for name, event in pair.tick(12) if isinstance(event, TokenEvent)]
    assert (said.count(FIRST), said.count(SECOND)) == (2, 2)
    assert pair.node.load_failures == {}


@pytest.mark.parametrize(
    ("prompt", "salt", "prefix_cache", "pulling"),
    [
        *((LONG, "a", True, 1), (LONG, "a", False, 2), (LONG, "b", True, 2)),
        (ONE_BLOCK, "a", True, 2),  # whose last token is computed again anyway
    ],
)
def test_nobody_waits_for_blocks_that_it_cannot_use(
    prompt: tuple[int, ...], salt: str, *, prefix_cache: bool, pulling: int
) -> None:
    pair = Pair()
    pair.engine.info = replace(pair.engine.info, prefix_cache=prefix_cache)
    pair.submit(asked(FIRST, prompt, "a"), pair.source.offer("one"))
    pair.submit(asked(SECOND, prompt, salt), pair.source.offer("two"))
    pair.tick()
    assert pair.node.decode.num_pulling == pulling

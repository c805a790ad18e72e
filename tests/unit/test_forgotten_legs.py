"""What a leg held is free as soon as it is over: its request may be as large as a prompt."""

import gc
from collections.abc import Iterable

import pytest

from discovery.registration import Role
from proxy.attempt.legs import Legs
from proxy.nodes.connection_pool import open_connections
from proxy.nodes.leg import HttpLeg
from tests.fakes.raw_http import CUT, END, HANG, SSE, Step, answer, chunk, events
from tests.unit.test_leg import DONE, FIRST, LAST, leg_at, node


def num_legs() -> int:
    return sum(type(one) is HttpLeg for one in gc.get_objects())


@pytest.mark.parametrize(
    ("script", "ends"),
    [
        ([SSE, *events(FIRST, LAST), DONE, END], True),
        ([SSE, *events(FIRST), HANG], False),
        ([SSE, *events(FIRST), CUT], True),
        ([SSE, chunk(b"data: {no JSON\n\n"), HANG], True),
        ([b"no HTTP\r\n\r\n", CUT], True),
        ([answer(500, {"error": {"message": "ill"}})], True),
    ],
)
async def test_it_does_not_wait_for_garbage_to_be_collected(
    script: Iterable[Step], *, ends: bool
) -> None:
    """Large requests do not hasten that: what counts is how many objects there are."""
    async with node(Role.DECODE, script) as (d, _), open_connections() as lines:
        gc.collect()
        gc.disable()
        before = num_legs()
        try:
            async with Legs() as legs:
                legs.open(d, leg_at(lines, d))
                assert await legs.next() is not None
                while ends and await legs.next() is not None:
                    pass
            del legs
            assert num_legs() == before
        finally:
            gc.enable()

"""What a decode node does with KV that is not its prompt's, and with what it has already."""

import pytest

from api.generator import Leg, StageEvent, TokenEvent
from engine.request import Request, Sampling
from kv_transfer.api import Outcome
from tests.fakes.decoding import Pair, failures, rid, sealed_for
from tests.fakes.model import alone

PROMPT = tuple(range(10))  # two full blocks of 4, and two tokens
ASKED = Request(rid, PROMPT, Sampling(2))
OTHERS = {"another": (*PROMPT[:9], 7), "shorter": PROMPT[:9], "longer": (*PROMPT, 7)}


def handed_over(pair: Pair, prompt: tuple[int, ...]) -> None:
    """The decode leg of ASKED, with a ticket for the KV of `prompt`."""
    ticket = pair.source.offer("r")
    pair.source.extend(ticket.ticket_id, [0, 1, 2])
    theirs = Request(rid, prompt, Sampling(2))
    pair.source.seal(ticket.ticket_id, sealed_for(theirs, first_token=alone(ASKED)[0]))
    pair.submit(ASKED, ticket)


@pytest.mark.parametrize("prompt", OTHERS.values(), ids=list(OTHERS))
def test_the_prompt_is_run_here_instead(prompt: tuple[int, ...]) -> None:
    pair = Pair()
    handed_over(pair, prompt)
    said = [one.tokens for _, one in pair.tick(8) if isinstance(one, TokenEvent)]
    assert [token for tokens in said for token in tokens] == alone(ASKED)
    assert pair.engine.computed == len(PROMPT) + 1
    assert pair.node.decode.load_failures == {"mismatch": 1}
    assert pair.used_blocks == 0


def test_or_the_job_fails_and_keeps_nothing() -> None:
    pair = Pair(recompute=False)
    handed_over(pair, OTHERS["another"])
    (failed,) = failures(pair.tick(8))
    assert "another prompt" in failed.reason
    assert pair.node.decode.load_failures.total() == 1
    assert pair.used_blocks == 0


def test_what_is_cached_here_is_not_fetched() -> None:
    pair = Pair()
    pair.node.submit(Request(rid, PROMPT, Sampling(1)), Leg(), pair.now)
    pair.tick(3)
    handed_over(pair, PROMPT)
    news = [one for _ in range(8) for one in (*pair.node.prepare(), *pair.node.run())]
    moved = [one for _, one in news if isinstance(one, StageEvent) and one.num_bytes]
    (region,) = pair.engine.kv_regions
    assert [one.num_bytes for one in moved] == [region.block_bytes]
    assert not pair.node.decode.load_failures
    assert pair.engine.computed == len(PROMPT) + 1
    assert pair.outcomes() == [Outcome.DELIVERED]


def test_a_running_answer_that_is_aborted_frees_its_blocks_and_seat() -> None:
    pair = Pair()
    pair.node.submit(ASKED, Leg(), pair.now)
    pair.tick()
    pair.node.abort(rid)
    assert (pair.used_blocks, pair.engine.load.running) == (0, 0)

"""One node's claims: what is measured of its prompts, and what of it the node has told."""

import pytest

from discovery.registration import Role
from proxy.routing.claims import WINDOW, Claims, NodeClaims, PromptSize, WorkTiming
from tests.unit.test_claims import node

PROMPT = PromptSize(100, 0)


def begun(*times: float) -> NodeClaims:
    share = NodeClaims()
    for now in times:
        share.begin(PROMPT, now)
    return share


def measured(timing: WorkTiming | None) -> tuple[int, float]:
    assert timing is not None
    return timing.work.prompts, timing.seconds


@pytest.mark.parametrize(("missing", "cached"), [(1, 0), (3, 4), (7, 1)])
def test_attention_pairs_each_missing_token_with_all_before_it(
    missing: int, cached: int
) -> None:
    pairs = sum(cached + place for place in range(missing)) + missing / 2
    assert PromptSize(missing, cached).pairs == int(pairs)


def test_a_node_works_from_its_first_prompt_on() -> None:
    share = begun(0, 5)
    assert share.finish(PROMPT, 10) is None
    assert measured(share.finish(PROMPT, 12)) == (2, 12)
    assert share.worked_s == 12


def test_an_event_that_comes_late_counts_no_time_twice() -> None:
    share = begun(0, 0, 0)
    for now in (10, 9):
        assert share.finish(PROMPT, now) is None
    assert measured(share.finish(PROMPT, 12)) == (3, 12)


def test_a_busy_node_is_measured_by_windows_of_prompts() -> None:
    share = begun(*[0] * (WINDOW + 2))
    timings = [share.finish(PROMPT, at + 1) for at in range(WINDOW + 2)]
    assert timings[: WINDOW - 1] == [None] * (WINDOW - 1)
    assert measured(timings[WINDOW - 1]) == (WINDOW, WINDOW)
    assert measured(timings[-1]) == (2, 2)


def test_a_prompt_that_is_given_up_voids_the_measurement() -> None:
    share = begun(0, 0, 0)
    assert share.finish(PROMPT, 5) is None
    share.drop(PROMPT, 7)
    assert measured(share.finish(PROMPT, 10)) == (1, 3)
    assert share.ahead == NodeClaims().ahead


def test_a_node_that_has_more_cached_than_the_prompt_has_nothing_to_run() -> None:
    claims, where = Claims(), node(Role.PREFILL, 0)
    claim = claims.claim(where, 100, 0.0, PROMPT)
    claim.set_cached(1000)
    assert (claims.at(where).ahead.tokens, claims.at(where).ahead.pairs) == (0, 0)
    claim.set_cached(40)
    assert claims.at(where).ahead.tokens == 60
    claim.end(1.0)
    assert claims.at(where).ahead == NodeClaims().ahead


def test_tokens_are_unheard_of_until_the_next_heartbeat() -> None:
    claims, where = Claims(), node(Role.DECODE, 0)
    claims.claim(where, 100, 0.0)
    assert claims.at(where).unheard_tokens(where) == 100
    where.hear(where.registration, 1.0)
    assert claims.at(where).unheard_tokens(where) == 0
    claims.claim(where, 30, 1.5)
    assert claims.at(where).unheard_tokens(where) == 30


def test_a_claim_that_ended_counts_nothing_and_gives_back_once() -> None:
    claims, where = Claims(), node(Role.DECODE, 0)
    kept, ended = claims.claim(where, 10, 0.0), claims.claim(where, 20, 0.0)
    kept.decode_began()
    ended.decode_began()
    for _ in range(2):
        ended.end(1.0)
    ended.decode_began()
    share = claims.at(where)
    assert (share.requests, share.tokens, share.decoding) == (1, 10, 1)


def test_a_claim_begins_to_decode_once_and_never_after_its_end() -> None:
    claims, where = Claims(), node(Role.DECODE, 0)
    kept, ended = claims.claim(where, 10, 0.0), claims.claim(where, 20, 0.0)
    ended.end(1.0)
    for _ in range(2):
        kept.decode_began()
        ended.decode_began()
    assert claims.at(where).decoding == 1
    kept.end(2.0)
    assert claims.at(where).decoding == 0


def test_only_idle_nodes_are_forgotten() -> None:
    claims, nodes = Claims(most=2), [node(Role.DECODE, number) for number in range(3)]
    claims.claim(nodes[0], 10, 0.0).end(1.0)
    claims.claim(nodes[1], 10, 0.0)
    claims.claim(nodes[2], 10, 0.0)
    assert list(claims.shares) == [nodes[1].node_id, nodes[2].node_id]

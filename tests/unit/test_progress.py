"""What counts of the attempts before: who failed them, and what the client has already."""

from api.generator import PromptEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Registration, Role
from engine.request import Logprob, Request, RequestId, Sampling
from proxy.attempt.progress import Progress
from proxy.errors import Cause, NodeFailed
from proxy.timeline.choice import ChoiceTimeline

P, Q = (Node(Registration(Role.PREFILL, f"{n}:1", "", n), heard_at=0) for n in "pq")
D, E = (Node(Registration(Role.DECODE, f"{n}:1", "", n), heard_at=0) for n in "de")
SCORED = PromptEvent(0, ((Logprob(2, -1.0, 1),),))


def progress(sampling: Sampling = Sampling(4)) -> Progress:  # noqa: B008
    request = Request(RequestId("r"), (1, 2), sampling)
    return Progress(request, ChoiceTimeline(request, 0.0))


def lost(prefill: Node, decode: Node) -> NodeFailed:
    pair = prefill.node_id, decode.node_id
    return NodeFailed(prefill.node_id, "corrupt", Cause.KV_TRANSFER, pair=pair)


def test_a_lost_transfer_is_held_against_the_pair_alone() -> None:
    one = progress()
    one.record_failure(lost(P, D))
    assert not one.failed_nodes
    assert not one.may_pair(P, D)
    assert one.may_pair(P, E)
    assert one.may_pair(Q, D)


def test_after_two_lost_transfers_decode_runs_the_prompt() -> None:
    one = progress()
    one.record_failure(lost(P, D))
    one.record_failure(lost(Q, E))
    assert not one.may_pair(P, E)


def test_a_prefill_node_that_failed_is_in_no_pair_until_there_is_a_token() -> None:
    one = progress()
    one.record_failure(NodeFailed("p", "it broke", Cause.BROKEN))
    assert (one.tries, one.may_pair(P, D), one.may_pair(Q, D)) == (1, False, True)
    one.record_event(TokenEvent((7,)))
    assert (one.tries, one.may_pair(P, D)) == (0, True)


def test_the_prompt_is_told_of_once_and_once_more_with_its_scores() -> None:
    one = progress()
    told = [PromptEvent(0), PromptEvent(8), SCORED, SCORED, PromptEvent(0), SCORED]
    new = [one.record_event(event) for event in told]
    assert new == [True, False, True, False, False, False]


def test_as_many_tokens_as_were_asked_for_lack_only_the_end() -> None:
    request = Request(RequestId("r"), (1, 2), Sampling(4), generated=(3, 4, 5))
    one = Progress(request, ChoiceTimeline(request, 0.0))
    assert not one.only_end_missing
    one.record_event(TokenEvent((7,)))
    assert one.only_end_missing
    two = progress()
    two.record_event(TokenEvent((7, 8, 9)))
    assert not two.only_end_missing


def test_what_the_client_has_is_not_asked_for_again() -> None:
    one = progress(Sampling(4, prompt_logprobs=0))
    assert one.remaining_request() is one.request
    one.record_event(SCORED)
    assert one.remaining_request().sampling.prompt_logprobs is None
    one.record_event(TokenEvent((7, 8)))
    assert one.remaining_request().generated == (7, 8)
    two = progress()
    two.record_event(TokenEvent((7,)))
    assert two.remaining_request().generated == (7,)

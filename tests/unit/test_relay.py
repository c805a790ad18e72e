"""What a leg that fails means for its attempt: nothing, another decode node, or the end."""

from collections.abc import Sequence

import pytest

from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    Leg,
    PromptEvent,
    TicketEvent,
    TokenEvent,
)
from discovery.node import Node
from discovery.registration import Registration, Role
from kv_transfer.ticket import KvTicket
from proxy.attempt.legs import LegEvent
from proxy.attempt.relay import Relay
from proxy.errors import NodeFailed
from proxy.routing.plan import Plan

P = Node(Registration(Role.PREFILL, "p:1", "", "p"), heard_at=0)
D = Node(Registration(Role.DECODE, "d:1", "", "d"), heard_at=0)
OTHER = Node(Registration(Role.DECODE, "o:1", "", "o"), heard_at=0)
TICKET = KvTicket("t", "e", "host", 1, "same")
LEG = Leg(ticket=TICKET, keep_open=True, elsewhere=True)
ONE, TWO, LAST = TokenEvent((1,)), TokenEvent((2,)), PromptEvent(0)
P_DIED = NodeFailed("p", "connection lost", retryable=True)
D_DIED = NodeFailed("d", "connection lost", retryable=True)
FULL = FailedEvent("no room", retryable=True, parked=True, no_room=True)
EXPIRED = FailedEvent("expired", retryable=True, by_peer=True)


def begun(leg: Leg = LEG) -> Relay:
    relay = Relay(Plan(P, D))
    assert relay.ticket_for_decode((P, TicketEvent(TICKET))) == TICKET
    relay.decode_opened(D, leg)
    return relay


def said(relay: Relay, *news: tuple[Node, LegEvent]) -> Sequence[Event]:
    return [event for node, one in news for event in relay.forward(node, one)]


def test_a_prefill_leg_that_breaks_off_late_is_waited_for_by_decodes_word() -> None:
    relay = begun()
    assert said(relay, (P, ONE), (P, P_DIED)) == [ONE]
    assert relay.prefill_failure is P_DIED
    assert said(relay, (D, LAST), (D, ONE), (D, TWO)) == [LAST, TWO]
    assert relay.prefill_failure is None
    assert relay.ignored_failure is P_DIED


def test_who_dies_of_it_is_not_to_blame() -> None:
    relay = begun()
    gone = FailedEvent("silent", retryable=True, by_peer=True)
    with pytest.raises(NodeFailed) as failure:
        said(relay, (P, ONE), (P, P_DIED), (D, D_DIED))
    assert failure.value is P_DIED
    with pytest.raises(NodeFailed) as failure:
        said(begun(), (P, ONE), (D, gone))
    assert failure.value.node_id == "p"


def test_before_its_token_a_prefill_leg_is_needed() -> None:
    with pytest.raises(NodeFailed) as failure:
        said(begun(), (P, P_DIED))
    assert failure.value is P_DIED


def test_afterwards_it_is_not() -> None:
    relay = begun()
    assert said(relay, (P, ONE), (D, LAST), (P, P_DIED)) == [ONE, LAST]
    assert relay.prefill_failure is None
    assert relay.ignored_failure is P_DIED


def test_a_pair_is_not_blamed_for_what_may_be_the_fault_of_the_node_before() -> None:
    """A lease that a dead node let run out, and that the next one was too late for."""
    first, second = begun(), begun()
    said(second, (D, D_DIED))
    second.decode_opened(OTHER, LEG)
    pairs = list[tuple[str, str] | None]()
    for relay in (first, second):
        said(relay, (P, EXPIRED))
        assert relay.prefill_failure
        pairs.append(relay.prefill_failure.pair)
    assert pairs == [("p", "d"), None]
    with pytest.raises(NodeFailed) as failure:
        said(second, (OTHER, EXPIRED))
    assert failure.value.pair == ("p", "o")  # that is its own


def test_a_lease_that_ran_out_gives_decode_a_moment_to_say_why() -> None:
    relay = begun()
    said(relay, (P, ONE), (P, EXPIRED))
    assert relay.prefill_failure
    assert relay.prefill_failure.node_id == "d"
    assert relay.prefill_failure.retryable
    with pytest.raises(NodeFailed) as failure:
        said(relay, (D, D_DIED))
    assert failure.value is D_DIED


@pytest.mark.parametrize("failure", [D_DIED, FULL])
@pytest.mark.parametrize("before", [[], [(P, ONE)]])
def test_while_its_kv_is_on_offer_another_takes_decodes_place(
    before: list[tuple[Node, LegEvent]], failure: LegEvent
) -> None:
    relay = begun()
    said(relay, *before, (D, failure))
    assert relay.decode_failure
    relay.decode_opened(OTHER, LEG)
    assert relay.decode_failure is None
    rest = said(relay, (OTHER, LAST), (OTHER, ONE), (OTHER, TWO))
    assert rest == [LAST, *([] if before else [ONE]), TWO]
    assert relay.plan == Plan(P, OTHER)


@pytest.mark.parametrize(
    "before", [[(P, EndEvent())], [(P, EXPIRED)], [(D, LAST)], [(P, ONE), (D, ONE)]]
)
def test_once_it_is_not_the_attempt_is_over(before: list[tuple[Node, LegEvent]]) -> None:
    relay = begun()
    said(relay, *before)
    with pytest.raises(NodeFailed):
        said(relay, (D, D_DIED))


@pytest.mark.parametrize(
    ("leg", "failure"),
    [
        (Leg(ticket=TICKET), D_DIED),  # of a foreign node
        (Leg(), D_DIED),
        (Leg(ticket=TICKET, keep_open=True), FULL),  # it was not asked
        (LEG, FailedEvent("nothing has moved", retryable=True)),  # it has let go of the KV
        (LEG, FailedEvent("too long", retryable=False)),
        (LEG, NodeFailed("d", "refused", retryable=False)),
    ],
)
def test_what_is_not_on_offer_cannot_be_fetched_elsewhere(leg: Leg, failure: LegEvent) -> None:
    relay = begun(leg)
    with pytest.raises(NodeFailed):
        said(relay, (D, failure))


def test_a_second_ticket_opens_no_second_decode_leg() -> None:
    relay = begun()
    assert relay.ticket_for_decode((P, TicketEvent(TICKET))) is None
    assert relay.ticket_for_decode(None) is None


def test_a_prompt_is_run_by_decode_only_if_there_was_no_ticket() -> None:
    assert Relay(Plan(P, D)).prefill_gave_no_ticket(None)
    assert not Relay(Plan(None, D)).prefill_gave_no_ticket(None)
    assert not begun().prefill_gave_no_ticket(None)


def test_what_decode_repeats_takes_no_short_way_to_the_client() -> None:
    relay = begun()
    said(relay, (P, ONE), (D, LAST), (P, EndEvent()))
    assert relay.pass_through(D, ONE) is None
    assert said(relay, (D, ONE)) == []
    assert relay.pass_through(D, TWO) is TWO


def test_decode_that_was_blamed_and_has_the_kv_after_all_is_cleared() -> None:
    relay = begun()
    said(relay, (P, ONE), (P, EXPIRED), (D, LAST))
    assert relay.prefill_failure is None
    assert relay.ignored_failure is None


def test_scores_that_only_prefill_has_are_not_gone_on_without() -> None:
    relay = Relay(Plan(P, D), awaits_prompt_logprobs=True)
    relay.decode_opened(D, LEG)
    with pytest.raises(NodeFailed) as failure:
        said(relay, (P, ONE), (D, LAST), (P, P_DIED))
    assert failure.value is P_DIED


def test_an_answer_of_one_node_takes_the_short_way() -> None:
    assert Relay(Plan(None, D)).pass_through(D, ONE) is ONE


def test_while_scores_are_awaited_only_decodes_tokens_are_held() -> None:
    relay = Relay(Plan(P, D), awaits_prompt_logprobs=True)
    relay.decode_opened(D, LEG)
    assert said(relay, (P, ONE)) == [ONE]
    assert said(relay, (D, ONE), (D, TWO)) == []
    assert said(relay, (P, EndEvent())) == [TWO]

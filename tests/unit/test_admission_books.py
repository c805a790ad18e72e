"""What is at work and in line is counted exactly, whoever comes, leaves and ends."""

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from proxy.admission.errors import AdmissionRefused
from proxy.admission.limits import KeyLimits
from proxy.admission.pools import NodeCounts, NodePools
from proxy.admission.queue import QueueEntry
from tests.unit.test_admission import Door, door

ACTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "end", "leave", "came"]),
        st.integers(0, 50),
        st.sampled_from("abc"),
        st.integers(1, 40),
        st.integers(-2, 2),
    ),
    max_size=60,
)


MOST = st.integers(1, 5) | st.none()
MOST_TOKENS = st.integers(1, 60) | st.none()


@given(ACTS, MOST, MOST_TOKENS, MOST, MOST)
def test_books_hold_whatever_happens(
    acts: list[tuple[str, int, str, int, int]],
    most: int | None,
    tokens: int | None,
    at_node: int | None,
    at_prefill: int | None,
) -> None:
    at_nodes = {"node_requests": at_node, "prefill_requests": at_prefill}
    crowd = door(requests=most, tokens=tokens, queued=8, **at_nodes)
    crowd.nodes = NodeCounts(1, 1)
    own, waiting = KeyLimits(max_requests=2, max_queued=4), list[QueueEntry]()
    for act, which, name, size, priority in acts:
        crowd.now += 0.5
        waiting = [one for one in waiting if one.began is None]
        if act == "come":
            with suppress(AdmissionRefused):
                prompt_tokens, choices, pooled = size // 2, 1 + which % 2, which % 5 == 0
                entry = crowd.come(
                    name,
                    own,
                    prompt_tokens=prompt_tokens,
                    tokens=size,
                    choices=choices,
                    priority=priority,
                    pooled=pooled,
                )
                waiting.append(entry)
        elif act == "leave" and waiting:
            crowd.admission.withdraw(waiting.pop(which % len(waiting)), now=crowd.now)
            crowd.inside += crowd.admission.admit_next(now=crowd.now, nodes=crowd.count)
        elif crowd.inside and act == "came":
            one = crowd.inside[which % len(crowd.inside)]
            crowd.admission.record_tokens(one, size, which % one.choices)
            crowd.inside += crowd.admission.admit_next(now=crowd.now, nodes=crowd.count)
        elif crowd.inside and act == "end":
            crowd.end(crowd.inside[which % len(crowd.inside)])
        _check(crowd, most, at_node, at_prefill)
    _empty(crowd, waiting)


def _empty(crowd: Door, waiting: list[QueueEntry]) -> None:
    for entry in waiting:
        crowd.admission.withdraw(entry, now=crowd.now)
    while crowd.inside:
        crowd.end(crowd.inside[0])
    assert (crowd.admission.in_use.choices, crowd.admission.in_use.tokens) == (0, 0)
    assert (len(crowd.admission.queue), crowd.admission.queue.tokens) == (0, 0)
    assert crowd.admission.pools == NodePools(crowd.admission.limits)


def _check(crowd: Door, most: int | None, at_node: int | None, at_prefill: int | None) -> None:
    alone = len(crowd.inside) == 1
    prompts = [one for one in crowd.inside if one.unfinished_prompts]
    unsaid = sum(len(one.unfinished_prompts) for one in prompts)
    assert at_prefill is None or unsaid <= at_prefill or len(prompts) == 1
    answers = [one for one in crowd.inside if not one.pooled]
    choices = sum(one.choices for one in answers)
    assert at_node is None or choices <= at_node or len(answers) == 1
    at_work = crowd.admission.in_use
    assert at_work.choices == sum(one.choices for one in crowd.inside)
    assert at_work.tokens == sum(one.tokens for one in crowd.inside)
    assert most is None or at_work.choices <= most or alone
    assert len(crowd.admission.queue) <= 8
    idle = not crowd.inside
    assert not (idle and len(crowd.admission.queue)), "nobody waits while nobody is at work"

"""What a model's nodes may have together, and how many may wait for them."""

import pytest

from engine.request import ModelKey
from proxy.admission.errors import ModelQueueFull, QueueWaitTooLong
from proxy.admission.pools import NodeCounts, NodePools
from tests.unit.test_admission import Door, door

LARGE: ModelKey = ("large", "f")
SMALL: ModelKey = ("small", "f")


def nodes(decode: int, prefill: int, **most: int | None) -> Door:
    crowd = door(**most)
    crowd.nodes = NodeCounts(decode, prefill)
    return crowd


def test_who_waits_for_one_models_nodes_holds_up_nobody_of_another() -> None:
    """Not even those of the same key, who stand behind him."""
    crowd = door(node_requests=1)
    crowd.of_models = {LARGE: NodeCounts(1), SMALL: NodeCounts(2)}
    first, waits = crowd.come(model=LARGE), crowd.come(model=LARGE)
    assert [crowd.come(model=SMALL).began is None for _ in range(3)] == [False, False, True]
    assert waits.began is None
    crowd.end(first)
    assert waits.began is not None
    assert len(crowd.admission.queue) == 1


def test_as_many_run_as_the_nodes_have_seats() -> None:
    crowd = door(node_requests="auto", node_tokens=100)
    crowd.nodes = NodeCounts(2, seats=3)
    assert [crowd.come().began is None for _ in range(4)] == [False, False, False, True]
    crowd = door(node_requests="auto", node_tokens=100)
    crowd.nodes = NodeCounts(2, seats=30)
    assert [crowd.come(tokens=90).began is None for _ in range(3)] == [False, False, True]


def test_nodes_that_name_no_seats_have_no_limit() -> None:
    crowd = door(node_requests="auto")
    crowd.nodes = NodeCounts(2)
    assert all(crowd.come().began is not None for _ in range(9))


def test_a_prompt_has_its_prefill_nodes_room_until_the_first_token() -> None:
    crowd = nodes(1, 2, prefill_requests=1)
    first, second, third = crowd.come(), crowd.come(), crowd.come()
    assert [one.began is None for one in (first, second, third)] == [False, False, True]
    assert crowd.admission.record_tokens(first, 1), "somebody else may go"
    assert not crowd.admission.record_tokens(first, 1), "it has said so"
    assert crowd.admission.admit_next(now=0.0, nodes=crowd.count) == [third]


def test_each_prompt_of_several_makes_room_with_its_own_first_token() -> None:
    crowd = nodes(1, 1, prefill_requests=3, prefill_tokens=100)
    batch = crowd.come(prompt_tokens=100, tokens=130, choices=3)
    waits = [crowd.come(prompt_tokens=33, tokens=40) for _ in range(3)]
    for choice, expected in ((2, waits[:1]), (2, []), (0, waits[1:2]), (1, waits[2:])):
        assert crowd.admission.record_tokens(batch, 1, choice) == bool(expected)
        assert crowd.admission.admit_next(now=0.0, nodes=crowd.count) == expected


def test_who_ends_amid_its_prompts_gives_back_no_more_than_it_has() -> None:
    crowd = nodes(1, 1, prefill_requests=3, prefill_tokens=100)
    batch = crowd.come(prompt_tokens=100, tokens=130, choices=3)
    crowd.admission.record_tokens(batch, 1, 1)
    crowd.end(batch)
    assert crowd.admission.pools == NodePools(crowd.admission.limits)


def test_a_long_prompt_is_not_passed_by_others_keys_short_ones_for_ever() -> None:
    crowd = nodes(1, 1, prefill_tokens=100)
    short = crowd.come("short", prompt_tokens=30)
    long = crowd.come("long", prompt_tokens=90)
    behind = crowd.come("short", prompt_tokens=30)
    assert (long.began, behind.began) == (None, None)
    crowd.end(short)
    assert (long.began, behind.began) == (0.0, None)


def test_a_large_answer_that_waits_for_its_models_nodes_holds_up_no_other_model() -> None:
    crowd = nodes(1, 1, node_tokens=100)
    crowd.come("short", tokens=60, model=LARGE)
    assert crowd.come("long", tokens=90, model=LARGE).began is None
    assert crowd.come("short", tokens=10, model=LARGE).began is None
    assert crowd.come("short", tokens=10, model=SMALL).began is not None


def test_vectors_do_not_stand_behind_answers_of_their_key_that_wait_for_decode_nodes() -> None:
    crowd = nodes(1, 1, node_requests=1, prefill_requests=2)
    crowd.come()
    assert crowd.come().began is None
    assert crowd.come(pooled=True).began is not None
    assert crowd.come(pooled=True).began is None, "there is no more room for prompts"


def test_tokens_at_prefill_nodes_are_those_of_prompts() -> None:
    crowd = nodes(1, 1, prefill_tokens=100)
    crowd.come(prompt_tokens=60, tokens=5000)
    assert crowd.come(prompt_tokens=40, tokens=5000).began is not None
    assert crowd.come(prompt_tokens=1, tokens=2).began is None


def test_an_answer_that_grows_takes_more_of_its_node() -> None:
    crowd = nodes(1, 1, node_tokens=100)
    one = crowd.come(prompt_tokens=10, tokens=20)
    crowd.admission.record_tokens(one, 50)
    assert crowd.come(tokens=41).began is None
    crowd.end(one)
    assert [entry.tokens for entry in crowd.inside] == [41]


def test_who_ends_before_its_first_token_gives_the_room_back_too() -> None:
    crowd = nodes(1, 1, prefill_requests=1)
    first, second = crowd.come(), crowd.come()
    crowd.end(first)
    assert second.began is not None


def test_where_there_is_no_prefill_node_nobody_waits_for_one() -> None:
    crowd = nodes(1, 0, prefill_requests=1, prefill_tokens=1)
    assert all(crowd.come(prompt_tokens=10).began is not None for _ in range(3))


def test_vectors_take_nothing_of_decode_nodes_while_there_are_others() -> None:
    crowd = nodes(1, 1, node_requests=1)
    crowd.come()
    assert crowd.come(pooled=True).began is not None
    assert crowd.come().began is None
    alone = nodes(1, 0, node_requests=1)
    alone.come(pooled=True)
    assert alone.come().began is None


def test_one_models_line_leaves_others_their_places() -> None:
    crowd = door(node_requests=1, node_queued=2, queued=100)
    crowd.of_models = {LARGE: NodeCounts(1, 3), SMALL: NodeCounts(1, 1)}
    for _ in range(3):
        crowd.come(model=LARGE)
    assert [crowd.come(model=SMALL).began is None for _ in range(3)] == [False, True, True]
    with pytest.raises(ModelQueueFull, match="2 requests are in line for the nodes") as refused:
        crowd.come(model=LARGE)
    assert refused.value.status == 503
    assert crowd.admission.refused == {"model_queue_full": 1}
    assert len(crowd.admission.queue) == 4


def test_a_line_for_nodes_that_only_pool_is_as_long_as_there_are_those() -> None:
    crowd = nodes(0, 1, prefill_requests=1, node_queued=1)
    crowd.come(pooled=True)
    crowd.come(pooled=True)
    with pytest.raises(ModelQueueFull):
        crowd.come(pooled=True)


def test_a_line_while_no_node_is_known_is_as_long_as_any() -> None:
    crowd = nodes(0, 0, requests=1, node_queued=0)
    crowd.come()
    assert crowd.come().began is None


def test_who_waits_for_a_prompt_waits_as_long_as_prompts_take_and_not_answers() -> None:
    crowd = nodes(1, 1, prefill_requests=1)
    first = crowd.come(prompt_tokens=10, tokens=1000)
    crowd.now = 2.0
    crowd.came(first, 1)
    crowd.now = 100.0
    crowd.whole(first)
    crowd.come()
    with pytest.raises(QueueWaitTooLong, match=r"a wait of 2\.0 s"):
        crowd.come(deadline=101.0)
    assert crowd.come(deadline=103.0).began is None
    with pytest.raises(QueueWaitTooLong, match=r"a wait of 4\.0 s"):
        crowd.come(deadline=103.0)


def test_who_waits_for_a_models_nodes_waits_for_none_of_another() -> None:
    crowd = door(node_requests=1)
    crowd.of_models = {LARGE: NodeCounts(1), SMALL: NodeCounts(1)}
    crowd.now = 1.0
    done = crowd.come(tokens=10, model=SMALL)
    crowd.now = 2.0
    crowd.whole(done)  # 10 tokens in a second
    crowd.come(tokens=10, model=SMALL)
    for _ in range(5):
        crowd.come(tokens=1000, model=LARGE)
    with pytest.raises(QueueWaitTooLong, match=r"a wait of 1\.0 s"):
        crowd.come(tokens=10, model=SMALL, deadline=2.5)

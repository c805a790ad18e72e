"""Who may go now, who waits, and who is refused: decisions, with a clock in the hand."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.request import ModelKey
from proxy.admission.admission import Admission
from proxy.admission.errors import KeyQueueFull, QueueFull, QueueWaitTooLong
from proxy.admission.limits import KeyLimits
from proxy.admission.pools import NodeCounts
from proxy.admission.queue import Lane, QueueEntry, RequestQueue
from tests.fakes.limits import limits

FREE = KeyLimits()
NONE = NodeCounts()


@dataclass
class Door:
    """An Admission with a clock and some nodes."""

    admission: Admission
    now: float = 0.0
    nodes: NodeCounts = NONE
    of_models: dict[ModelKey | None, NodeCounts] = field(default_factory=dict)
    inside: list[QueueEntry] = field(default_factory=list)

    def come(
        self,
        name: str = "a",
        limits: KeyLimits = FREE,
        *,
        prompt_tokens: int = 0,
        tokens: int = 10,
        choices: int = 1,
        priority: int = 0,
        deadline: float | None = None,
        model: ModelKey | None = None,
        pooled: bool = False,
    ) -> QueueEntry:
        what = name, limits, prompt_tokens, tokens, choices, priority, deadline
        entry = QueueEntry(*what, model=model, pooled=pooled)
        self.inside += self.admission.arrive(entry, now=self.now, nodes=self.count)
        if entry.began is None:
            self.admission.check_wait(entry, now=self.now, nodes=self.count)
        return entry

    def count(self, model: ModelKey | None) -> NodeCounts:
        return self.of_models.get(model, self.nodes)

    def came(self, entry: QueueEntry, tokens: int) -> None:
        """As the gate has it."""
        if self.admission.record_tokens(entry, tokens):
            self.admission.record_first_token(entry, now=self.now)
            self.inside += self.admission.admit_next(now=self.now, nodes=self.count)

    def end(self, entry: QueueEntry) -> None:
        self.admission.finish(entry, now=self.now)
        self.inside.remove(entry)
        self.inside += self.admission.admit_next(now=self.now, nodes=self.count)

    def whole(self, entry: QueueEntry) -> None:
        """All came that was thought."""
        self.admission.record_tokens(entry, entry.tokens - entry.prompt_tokens - entry.produced)
        self.end(entry)

    def order(self) -> list[QueueEntry]:
        """Everybody that waits, as they come in one after the other."""
        began = list[QueueEntry]()
        while self.admission.queue:
            self.whole(self.inside[0])
            began.append(self.inside[-1])
        return began


def door(**most: Any) -> Door:  # noqa: ANN401  of limits.py
    return Door(Admission(limits(**most)))


def test_without_limits_nobody_waits() -> None:
    crowd = door()
    assert all(crowd.come().began is not None for _ in range(5000))


def test_who_is_too_many_waits_for_a_place_and_gets_it() -> None:
    crowd = door(requests=2)
    first, _second, third = crowd.come(), crowd.come(), crowd.come()
    assert third.began is None
    crowd.end(first)
    assert third.began == crowd.now


def test_tokens_are_limited_and_the_largest_goes_alone() -> None:
    crowd = door(tokens=100)
    small, large, later = crowd.come(tokens=60), crowd.come(tokens=500), crowd.come(tokens=10)
    assert (large.began, later.began) == (None, None), "the small one must not starve it"
    crowd.end(small)
    assert large.began is not None
    assert later.began is None


def test_more_choices_take_more_room() -> None:
    crowd = door(requests=4)
    crowd.come(choices=3)
    assert crowd.come(choices=2).began is None


def test_each_node_adds_room() -> None:
    crowd = door(node_requests=1)
    crowd.nodes = NodeCounts(2)
    first, second, third = crowd.come(), crowd.come(), crowd.come()
    assert [one.began is None for one in (first, second, third)] == [False, False, True]
    crowd.nodes = NodeCounts(3)
    assert crowd.admission.admit_next(now=0.0, nodes=crowd.count) == [third]


def test_vectors_say_nothing_of_how_long_a_keys_answers_are() -> None:
    crowd = door()
    for pooled in (False, True, True):
        one = crowd.come(pooled=pooled, tokens=100)
        crowd.now += 1
        crowd.admission.record_tokens(one, 0 if pooled else 100)
        crowd.end(one)
    assert crowd.admission.estimate("a", 1000) == 151


def test_a_look_along_the_line_does_not_cost_all_pairs_of_keys() -> None:
    class Counted(dict[Lane, list[QueueEntry]]):
        looks = 0

        def items(self) -> Any:  # noqa: ANN401
            self.looks += 1
            return super().items()

    lanes = Counted()
    crowd = door(requests=1)
    crowd.admission.queue = RequestQueue(_waiting=lanes)
    crowd.whole(crowd.come())
    for number in range(50):
        crowd.come(str(number))
    before = lanes.looks
    last = crowd.come("last")
    assert crowd.admission.queue.ahead_of(last) == 490
    assert lanes.looks - before <= 5


def test_keys_that_were_let_in_are_seldom_looked_through() -> None:
    """They are copied as often as their number doubles, and not with every request."""
    line = RequestQueue()
    kept = [line._times]
    for number in range(5000):
        line.begin(QueueEntry(str(number), FREE, 0, 10))
        if line._times is not kept[-1]:
            kept.append(line._times)
    assert len(kept) <= 8
    line.begin(QueueEntry("late", FREE, 0, 10**6))
    for number in range(10_000):
        line.begin(QueueEntry("late", FREE, 0, 10))
        line.begin(QueueEntry(str(number), FREE, 0, 10))
    assert len(line._times) < 10_000, "those that are behind say nothing"


def test_without_nodes_their_limits_hold_up_nobody() -> None:
    """The pipeline waits for one to come, and knows what to say if none does."""
    assert door(node_requests=1, node_tokens=1).come().began is not None


def test_an_answer_that_grows_beyond_its_estimate_takes_more_room() -> None:
    crowd = door(tokens=100)
    one = crowd.come(prompt_tokens=10, tokens=20)
    crowd.admission.record_tokens(one, 50)
    assert crowd.admission.in_use.tokens == 60
    assert crowd.come(tokens=50).began is None
    crowd.end(one)
    assert [entry.tokens for entry in crowd.inside] == [50]
    assert crowd.admission.in_use.tokens == 50


def test_what_answers_had_lately_corrects_what_they_may_have() -> None:
    crowd = door()
    assert crowd.admission.estimate("a", 4096) == 4096
    one = crowd.come(tokens=4096)
    crowd.admission.record_tokens(one, 100)
    crowd.now = 1.0
    crowd.end(one)
    assert crowd.admission.estimate("a", 4096) == 151
    assert crowd.admission.estimate("a", 20) == 20
    assert crowd.admission.estimate("b", 4096) == 4096


def test_the_more_urgent_goes_first_and_then_who_came_first() -> None:
    crowd = door(requests=1)
    crowd.come()
    late, normal, urgent = crowd.come(priority=5), crowd.come(), crowd.come(priority=-1)
    other, others = crowd.come(), crowd.come("b", priority=1)  # "b" has had nothing yet
    assert crowd.order() == [urgent, normal, other, others, late]


def test_keys_take_turns_however_many_requests_one_has() -> None:
    crowd = door(requests=1)
    crowd.come("loud")
    loud = [crowd.come("loud") for _ in range(4)]
    quiet = [crowd.come("quiet") for _ in range(2)]
    order = crowd.order()
    assert [one.name for one in order[:4]].count("quiet") == 2
    assert [one for one in order if one.name == "loud"] == loud
    assert [one for one in order if one.name == "quiet"] == quiet


def test_shares_are_of_tokens_and_grow_with_weight() -> None:
    crowd, heavy = door(requests=1), KeyLimits(weight=3.0)
    crowd.come("other")
    for _ in range(40):
        crowd.come("a", tokens=10)
        crowd.come("b", heavy, tokens=10)
    first = [one.name for one in crowd.order()[:40]]
    assert first.count("b") == pytest.approx(30, abs=1)


def test_who_was_away_saves_up_no_share() -> None:
    crowd = door(requests=1)
    for _ in range(50):
        crowd.whole(crowd.come("steady"))
    crowd.come("steady")
    for _ in range(6):
        crowd.come("new")
        crowd.come("steady")
    names = [one.name for one in crowd.order()[:6]]
    assert names.count("new") in (3, 4)


def test_a_key_at_its_limit_does_not_hold_up_others() -> None:
    crowd, one_at_once = door(requests=10), KeyLimits(max_requests=1)
    first, second = crowd.come("a", one_at_once), crowd.come("a", one_at_once)
    assert second.began is None
    assert crowd.come("b").began is not None
    crowd.end(first)
    assert second.began is not None


def test_a_full_line_refuses_and_says_when_to_come_back() -> None:
    crowd = door(requests=1, queued=1)
    first = crowd.come(prompt_tokens=10, tokens=20)
    crowd.admission.record_tokens(first, 10)
    crowd.now = 4.0  # 20 tokens in 4 s
    crowd.end(first)
    crowd.come(tokens=20)
    crowd.come(tokens=20)
    with pytest.raises(QueueFull, match="1 requests are in line") as refused:
        crowd.come(tokens=20)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 8)
    assert len(crowd.admission.queue) == 1
    assert crowd.admission.refused == {"queue_full": 1}


def test_a_key_with_a_full_line_is_told_that_it_is_the_key() -> None:
    crowd, small = door(), KeyLimits(max_requests=1, max_queued=0)
    crowd.come("a", small)
    with pytest.raises(KeyQueueFull, match="key 'a'") as refused:
        crowd.come("a", small)
    assert refused.value.status == 429
    assert refused.value.retry_after_s is not None
    assert crowd.come("b").began is not None


def test_who_cannot_be_reached_in_time_is_refused_at_once() -> None:
    crowd = door(requests=1)
    first = crowd.come(prompt_tokens=10, tokens=20)
    crowd.admission.record_tokens(first, 10)
    crowd.now = 2.0  # 10 tokens a second
    crowd.end(first)
    crowd.come(tokens=100)
    crowd.come(tokens=100)  # 10 s
    assert crowd.come(tokens=10, deadline=2.0 + 11.5).began is None
    with pytest.raises(QueueWaitTooLong, match=r"a wait of 1\d\.. s") as refused:
        crowd.come(tokens=10, deadline=2.0 + 5)
    assert refused.value.retry_after_s == 7
    urgent = crowd.come(tokens=10, priority=-1, deadline=2.0 + 5)
    assert urgent.began is None, "nobody is ahead of it, so it may wait"


def test_while_nothing_was_measured_nobody_is_refused_for_being_late() -> None:
    crowd = door(requests=1)
    crowd.come()
    assert crowd.come(deadline=0.1).began is None


def test_who_leaves_the_line_frees_its_place_at_once() -> None:
    crowd = door(requests=1, queued=1)
    crowd.come()
    second = crowd.come()
    assert crowd.admission.withdraw(second, now=crowd.now)
    assert not crowd.admission.withdraw(second, now=crowd.now)
    assert crowd.come().began is None

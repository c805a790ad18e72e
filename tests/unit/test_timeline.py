"""A request's timeline: what was stamped, in order and complete, on one clock."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import pytest

from api.generator import WHOLE, TokenEvent
from engine.request import Request, RequestId, Sampling
from proxy.observing.rendering import server_timing, timeline_json
from proxy.observing.timeline_store import TimelineStore
from proxy.timeline.choice import MAX_EVENTS, ChoiceTimeline
from proxy.timeline.clock_alignment import leg_timelines
from proxy.timeline.events import LegOpened, StageEnded, TimelineEvent
from proxy.timeline.exchange import HttpExchange
from proxy.timeline.record import record_of
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.node import Ill

PROMPT = tuple(range(1, 12))
SPLIT = [
    *("received", "tokenized", "planned", "leg", "queue", "ticket", "prompt"),
    *(
        "leg",
        "reserve",
        "prefill",
        "first_token",
        "transfer",
        "prompt",
        "taken",
        "decode",
        "last_token",
    ),
    "ended",
]


async def lived(
    cluster: Cluster, name: str = "r", *, most: int = 6, read: int = 99
) -> HttpExchange:
    """A request that came half a second ago, read until it has `read` tokens."""
    exchange = HttpExchange(cluster.now - 0.5, 1e9, "/v1/completions")
    timeline = ChoiceTimeline(
        Request(RequestId(name), PROMPT, Sampling(most, seed=1)), cluster.now
    )
    exchange.choices.append(timeline)
    async with aclosing(
        cluster.pipeline.stream(timeline.request, WHOLE, timeline=timeline)
    ) as events:
        await _read(events, timeline, read, cluster)
    timeline.ended_at = exchange.ended = cluster.now
    return exchange


async def _read(
    events: AsyncGenerator[Any], timeline: ChoiceTimeline, most: int, cluster: Cluster
) -> None:
    async for event in events:
        if isinstance(event, TokenEvent):
            timeline.record_tokens(event, cluster.now)
            if timeline.output_tokens >= most:
                return


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


def told(exchange: HttpExchange) -> Any:  # noqa: ANN401  JSON
    return timeline_json(record_of(exchange))


def names(choice: Any) -> list[str]:  # noqa: ANN401
    return [event["event"] for event in choice["events"]]


def find(choice: Any, name: str) -> list[Any]:  # noqa: ANN401
    return [event for event in choice["events"] if event["event"] == name]


async def test_a_split_requests_timeline_is_complete_and_in_order() -> None:
    exchange = await lived(Cluster(engine=small, turn_s=0.01))
    (choice,) = told(exchange)["choices"]
    assert sorted(names(choice)) == sorted(SPLIT)
    times = [event["at_s"] for event in choice["events"]]
    assert times == sorted(times)
    order = {name: names(choice).index(name) for name in set(SPLIT)}
    causes = ("received", "tokenized", "planned", "ticket", "reserve", "transfer", "decode")
    assert all(order[one] < order[two] for one, two in pairwise(causes))
    assert order["prefill"] <= order["first_token"] < order["last_token"] <= order["ended"]
    assert choice["finish"] == "length"
    assert [event["node"] for event in find(choice, "leg")] == ["p0:80", "d0:80"]
    assert [event["kind"] for event in find(choice, "leg")] == ["prefill", "decode"]


async def test_a_plan_says_why_it_was_made_and_what_it_foretold() -> None:
    exchange = await lived(Cluster())
    (choice,) = told(exchange)["choices"]
    (planned,) = find(choice, "planned")
    assert (planned["prefill"], planned["decode"]) == ("p0:80", "d0:80")
    assert planned["why"] == "policy"
    foretold = planned["foretold_first_token_s"], planned["foretold_finish_s"]
    assert foretold == pytest.approx(exchange.choices[0].predicted, abs=1e-6)
    exchange = await lived(Cluster(0, 1))
    (planned,) = find(told(exchange)["choices"][0], "planned")
    assert (planned["prefill"], planned["why"]) == (None, "no_prefill")


async def test_a_pull_says_its_bytes_and_how_long_it_waited() -> None:
    exchange = await lived(Cluster(engine=small, turn_s=0.01))
    (choice,) = told(exchange)["choices"]
    (transfer,), (prefill,) = find(choice, "transfer"), find(choice, "prefill")
    assert transfer["num_bytes"] > 0
    assert transfer["pull_s"] >= transfer["seconds"]
    assert (transfer["node"], prefill["node"]) == ("d0:80", "p0:80")
    assert prefill["at_s"] - prefill["began_s"] == pytest.approx(prefill["seconds"])
    assert prefill["seconds"] > 0


async def test_nodes_say_when_each_stage_was_over_since_they_were_called() -> None:
    exchange = await lived(Cluster(engine=small, turn_s=0.01))
    said = [mark for mark in exchange.choices[0].events if isinstance(mark, StageEnded)]
    over = {mark.stage: mark.node_s for mark in said}
    took = {mark.stage: mark.seconds for mark in said}
    assert over["queue"] == pytest.approx(took["queue"])
    assert over["prefill"] == pytest.approx(took["queue"] + took["prefill"])
    assert over["reserve"] == pytest.approx(took["reserve"])
    assert over["decode"] == pytest.approx((over["transfer"] or 0.0) + took["decode"])


async def test_a_retry_says_why_and_who_and_goes_on_elsewhere() -> None:
    cluster = Cluster(2, 2, engine=small, turn_s=0.01)
    cluster.decodes[0].script[9] = Ill.KILL
    exchange = await lived(cluster, most=12)
    (choice,) = told(exchange)["choices"]
    assert (choice["tries"], choice["output_tokens"], choice["finish"]) == (2, 12, "length")
    (retry,) = find(choice, "retry")
    assert retry["node"] == "d0:80"
    assert "connection lost" in retry["reason"]
    plans = find(choice, "planned")
    assert [plan["decode"] for plan in plans] == ["d0:80", "d1:80"]
    assert plans[0]["at_s"] <= retry["at_s"] <= plans[1]["at_s"]


async def test_one_whose_client_left_has_an_end_and_no_last_token() -> None:
    exchange = await lived(Cluster(engine=small, turn_s=0.01), most=50, read=3)
    (choice,) = told(exchange)["choices"]
    assert choice["finish"] == "closed"
    assert "ended" in names(choice)
    assert "last_token" not in names(choice)
    assert "first_token" in names(choice)


async def test_server_timing_has_every_stage_in_milliseconds() -> None:
    exchange = await lived(Cluster(engine=small, turn_s=0.01))
    assert exchange.ended is not None
    entries = dict(
        entry.split(";dur=") for entry in server_timing(exchange, exchange.ended).split(", ")
    )
    assert list(entries)[:2] == ["tokenize", "plan"]
    assert {"queue", "prefill", "reserve", "transfer", "decode", "first"} <= set(entries)
    assert entries["tokenize"] == "500.000"
    assert list(entries)[-1] == "total"
    assert float(entries["total"]) == pytest.approx(1e3 * (exchange.ended - exchange.received))


def test_stages_of_a_node_whose_clock_is_far_off_lie_between_call_and_news() -> None:
    call = LegOpened(10.0, "p", "prefill")
    queue, prefill = (
        StageEnded(10.5, "p", "queue", 0.1, 0, 0.1),
        StageEnded(11.2, "p", "prefill", 0.9, 0, 1.0),
    )
    (leg,) = leg_timelines([call, queue, prefill])
    first, second = leg.placed()
    # the news of prefill was the quicker: 0.2 s there and back
    assert (first.began, first.ended) == pytest.approx((10.1, 10.2))
    assert (second.began, second.ended) == pytest.approx((10.2, 11.1))


def test_stages_of_a_node_that_says_no_offset_end_when_they_are_heard() -> None:
    (leg,) = leg_timelines([LegOpened(1.0, "p", "prefill"), StageEnded(3.0, "p", "queue", 0.5)])
    (queue,) = leg.placed()
    assert (queue.began, queue.ended) == (2.5, 3.0)


def test_two_legs_at_one_node_are_told_apart() -> None:
    marks: list[TimelineEvent] = [
        *(LegOpened(1.0, "d", "decode"), StageEnded(2.0, "d", "reserve", 0.5, 0, 0.5)),
        *(LegOpened(5.0, "d", "whole"), StageEnded(6.0, "d", "queue", 0.5, 0, 0.5)),
    ]
    assert [[one.stage.stage for one in leg.placed()] for leg in leg_timelines(marks)] == [
        ["reserve"],
        ["queue"],
    ]


def over(name: str, owner: str = "", marks: int = 0) -> HttpExchange:
    exchange = HttpExchange(0.0, owner=owner, request_id=name)
    timeline = ChoiceTimeline(Request(RequestId(name), (1,)))
    timeline.events += [LegOpened(0.0, "n" * 20, "whole")] * marks
    exchange.choices.append(timeline)
    return exchange


def test_the_last_are_kept_and_the_oldest_go() -> None:
    kept = TimelineStore(3)
    for number in range(10):
        kept.end(over(f"r{number}"))
    found = [number for number in range(10) if kept.find(f"r{number}", None)]
    assert found == [7, 8, 9]


def test_memory_has_a_bound_in_bytes_too() -> None:
    kept, most = TimelineStore(1_000_000, most_bytes=100_000), 0
    for number in range(500):
        kept.end(over(f"r{number}", marks=MAX_EVENTS))
        most = max(most, kept.num_bytes)
    assert 50_000 < most <= 100_000
    assert kept.find("r499", None)
    assert kept.find("r0", None) is None
    kept.end(over("huge" * 50_000))
    assert kept.num_bytes <= 100_000


def test_a_request_that_is_over_runs_no_more() -> None:
    kept, exchange = TimelineStore(1), over("gone")
    kept.begin(exchange)
    kept.end(exchange)
    kept.end(over("next"))
    assert kept.find("gone", None) is None


def test_with_none_to_keep_none_is_kept_not_even_while_it_runs() -> None:
    kept, exchange = TimelineStore(0), over("r")
    kept.begin(exchange)
    assert kept.find("r", None) is None
    kept.end(exchange)
    assert (kept.find("r", None), kept.num_bytes) == (None, 0)


def test_a_second_request_of_the_same_name_takes_the_place_of_the_first() -> None:
    kept = TimelineStore(10)
    for status in (200, 503):
        exchange = over("same")
        exchange.status = status
        kept.end(exchange)
    found = kept.find("same", None)
    assert found
    assert found.status == 503
    assert kept.num_bytes == len(kept._over["", "same"])


def test_nobody_sees_or_hides_a_request_of_another_key() -> None:
    kept = TimelineStore(10)
    for owner, status in (("mine", 200), ("theirs", 503)):
        exchange = over("same", owner)
        exchange.status = status
        kept.end(exchange)
    mine, theirs = kept.find("same", "mine"), kept.find("same", "theirs")
    assert mine
    assert theirs
    assert (mine.status, theirs.status) == (200, 503)
    assert kept.find("same", "nobody's") is None


def test_all_names_of_a_request_lead_to_it() -> None:
    kept = TimelineStore(10)
    exchange = HttpExchange(0.0, request_id="r")
    for index in range(3):
        exchange.choices.append(ChoiceTimeline(Request(RequestId(f"r-{index}"), (1,))))
    kept.begin(exchange)
    for _ in ("while it runs", "when it is over"):
        for name in ("r", "r-0", "r-2", "chatcmpl-r", "cmpl-r", "cmpl-r-1", "resp_r", "msg_r"):
            assert kept.find(name, None), name
        assert kept.find("r-x", None) is None
        assert kept.find("chatcmpl-", None) is None
        kept.end(exchange)

"""What is said of the cluster is the same, whichever worker says it."""

from typing import Any

from proxy.workers.cluster_reports import merge_status

TROUBLES = {"closed": None, "open": "gone", "half_open": "silent"}


def said(in_flight: int, failures: int, breaker: str, pairs: dict[str, str]) -> dict[str, Any]:
    return {
        "requests_in_flight": in_flight,
        "requests_queued": 10 * in_flight,
        "nodes": [
            {
                "http_address": "h:1",
                "failures": failures,
                "breaker": breaker,
                "trouble": TROUBLES[breaker],
            }
        ],
        "pairs": [
            {"prefill_node_id": name, "decode_node_id": "d", "breaker": state}
            for name, state in pairs.items()
        ],
    }


def test_requests_and_failures_are_added_up_and_the_worst_breaker_counts() -> None:
    one = said(2, 1, "closed", {"p0": "open"})
    two = said(3, 0, "half_open", {"p0": "half_open", "p1": "open"})
    whole = said(5, 1, "half_open", {"p0": "open", "p1": "open"})
    assert merge_status(one, [two]) == whole


def test_alone_nothing_is_added() -> None:
    assert merge_status(said(2, 1, "open", {}), []) == said(2, 1, "open", {})

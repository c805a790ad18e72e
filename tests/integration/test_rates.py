"""Answers to keys with rates say how much is left, and refusals when to come back."""

import pytest

from proxy.admin.guard import Guard
from proxy.admission.admission import Admission
from proxy.admission.gate import AdmissionGate
from proxy.admission.limits import KeyLimits
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import http_cluster

HI = [{"role": "user", "content": "hi"}]
KEY = {"Authorization": "Bearer one"}
LIMIT, LEFT, RESET = (
    f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")
)


def gate(**limits: int) -> AdmissionGate:
    limited = Admission(key_limits=KeyLimits(**limits))
    return AdmissionGate(limited, clock=lambda: 100.0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "the", "max_tokens": 2}),
        ("/v1/completions", {"prompt": "the", "max_tokens": 2, "stream": True}),
        ("/v1/messages", {"messages": HI, "max_tokens": 2, "stream": True}),
        ("/v1/embeddings", {"input": "the"}),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"max_tokens": 2}}),
    ],
)
async def test_the_second_of_one_is_refused_with_a_time_and_both_say_what_is_left(
    path: str, body: dict[str, object]
) -> None:
    door = gate(requests_per_minute=1)
    async with http_cluster(Cluster(1, 1), guard=Guard(("one", "two")), gate=door) as proxy:
        url = f"http://{proxy.url}{path}"
        async with proxy.session.post(url, json=body, headers=KEY) as answer:
            assert answer.status == 200
            said = [answer.headers[name] for name in (LIMIT, LEFT, RESET)]
            assert said == ["1", "0", "1m0s"]
            assert not any("tokens" in name for name in answer.headers)
        async with proxy.session.post(url, json=body, headers=KEY) as refused:
            assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
            assert refused.headers[LEFT] == "0"
            error = (await refused.json())["error"]
            assert error["type"] == "rate_limit_error"
            assert "api-key-1" in error["message"]
        other = {"Authorization": "Bearer two"}
        async with proxy.session.post(url, json=body, headers=other) as answer:
            assert answer.status == 200
        assert door.admission.refused == {"requests_per_minute": 1}


async def test_an_answer_costs_its_key_what_it_has_and_no_more() -> None:
    door = gate(tokens_per_minute=1000)
    body = {"prompt": [1, 2, 3], "max_tokens": 5}
    async with http_cluster(Cluster(1, 1), guard=Guard(("one",)), gate=door) as proxy:
        url = f"http://{proxy.url}/v1/completions"
        async with proxy.session.post(url, json=body, headers=KEY) as first:
            used = (await first.json())["usage"]["total_tokens"]
        async with proxy.session.post(url, json=body, headers=KEY) as second:
            left = int(second.headers["x-ratelimit-remaining-tokens"])
            assert second.status == 200
        assert left <= 1000 - used - 3
        assert left >= 1000 - 2 * used - 5

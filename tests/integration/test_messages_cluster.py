"""Messages from split requests, through the proxy's real door, whatever becomes of nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from api.door.limiter import LARGEST_BODY
from api.text.tokenizing import load_text_codec
from proxy.admin.guard import Guard
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load
from tests.fakes.http import Json
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.messages import COUNT, PATH, checked, events_of, message_of, refused, summary
from tests.fakes.node import Ill

TEXT = "which way does the river run, and who has seen where it ends?"
SIGN = "{# <tool_call> #}"
HI = [{"role": "user", "content": "hi"}]
WEATHER: Json = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"enum": [1, 2, 30]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
FORM = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
WISHES: dict[str, Json] = {
    "text": {"temperature": 1.3, "top_p": 0.9},
    "form": {
        "output_config": {"format": {"type": "json_schema", "schema": FORM}},
        "max_tokens": 60,
    },
    "call": {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 90},
}
ILLS = st.tuples(
    st.sampled_from(["p0", "p1", "d0", "d1"]), st.integers(1, 60), st.sampled_from([*Ill])
)


def cluster_of(llama: Path, x: int, y: int) -> Cluster:
    return Cluster(x, y, engine=lambda: load(llama, max_num_batched_tokens=16))


async def ask(http: HttpCluster, *, stream: bool, **fields: object) -> Json:
    said = [{"role": "user", "content": TEXT}]
    body = {"max_tokens": 16, "seed": 5, "temperature": 0, "messages": said, **fields}
    status, data = await http.post(f"{PATH}?beta=true", {**body, "stream": stream})
    assert status == 200, data
    return message_of(events_of(data.decode())) if stream else checked(json.loads(data))


def told(message: Json) -> Any:  # noqa: ANN401
    """What has to be the same whatever happens."""
    prompt = sum(message["usage"][name] for name in message["usage"] if "input" in name)
    said = message["usage"]["output_tokens"]
    return summary(message), message["stop_reason"], prompt, said


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """What one node says, by wish."""
    return {}


@pytest.mark.parametrize("name", WISHES)
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@example(ill=("d0", 9, Ill.KILL))  # half of the way
@given(ill=ILLS)
async def test_a_stream_goes_on_where_a_node_broke_it_off(
    llama: Path, undisturbed: dict[str, Any], name: str, ill: tuple[str, int, Ill]
) -> None:
    """No letter twice and none left out: each event is looked at."""
    codec = load_text_codec(llama)
    codec.tokenizer.chat_template = f"{codec.tokenizer.chat_template}{SIGN}"
    if name not in undisturbed:
        async with http_cluster(cluster_of(llama, 0, 1), codec=codec) as alone:
            undisturbed[name] = told(await ask(alone, stream=False, **WISHES[name]))
    cluster = cluster_of(llama, 2, 2)
    cluster.nodes[ill[0]].script[ill[1]] = ill[2]
    async with http_cluster(cluster, codec=codec, tries=8) as http:
        assert told(await ask(http, stream=True, **WISHES[name])) == undisturbed[name]
        assert await http.settled() == 0


async def test_a_split_message_says_what_a_chat_says(llama: Path) -> None:
    codec = load_text_codec(llama)
    async with http_cluster(cluster_of(llama, 1, 1), codec=codec) as http:
        same: Json = {"temperature": 0.7, "seed": 11, "max_tokens": 20}
        said = [{"role": "user", "content": TEXT}]
        chat = {"model": "tiny", "messages": said, **same}
        _, data = await http.post("/v1/chat/completions", chat)
        expected = json.loads(data)
        for stream in (False, True):
            message = await ask(http, stream=stream, **same)
            text = expected["choices"][0]["message"]["content"]
            assert summary(message) == [("text", text)]
            assert told(message)[2:] == (
                expected["usage"]["prompt_tokens"],
                expected["usage"]["completion_tokens"],
            )
        status, data = await http.post(COUNT, {"messages": said})
        assert (status, json.loads(data)) == (
            200,
            {"input_tokens": expected["usage"]["prompt_tokens"]},
        )
        assert all(node.legs for node in http.cluster.nodes.values())
        assert await http.settled() == 0


async def test_what_begins_with_the_assistants_words_goes_on_with_them(llama: Path) -> None:
    """As a chat that is told to, and not as one that answers behind them."""
    codec = load_text_codec(llama)
    said = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": "which way"}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    async with http_cluster(cluster_of(llama, 1, 1), codec=codec) as http:
        heard = summary(await ask(http, stream=True, max_tokens=6, messages=said))[0][1]
        for fields, same in ((goes_on, True), ({}, False)):
            same_words = {"messages": said, "max_tokens": 6, "temperature": 0, **fields}
            _, data = await http.post("/v1/chat/completions", same_words)
            told_by_chat = json.loads(data)["choices"][0]["message"]["content"]
            assert (told_by_chat == heard) is same


async def test_a_timeline_comes_before_the_last_events_and_is_found_by_the_messages_id() -> (
    None
):
    async with http_cluster(Cluster()) as http:
        body = {"messages": HI, "stream": True, "max_tokens": 3}
        status, data = await http.post(PATH, body, **{"X-Pdserve-Timing": "1"})
        assert status == 200
        *_, delta, stop, rest = data.decode().split("\n\n")
        assert rest == ""
        assert delta.startswith("event: message_delta")
        assert stop.startswith("event: message_stop")
        assert "\n\n: " in data.decode()
        message = message_of(events_of(data.decode()))
        assert message["usage"]["output_tokens"] == 3
        status, data = await http.get(f"/requests/{message['id']}")
        assert (status, json.loads(data)["endpoint"]) == (200, PATH)
        await http.post(COUNT, {"messages": HI})
        page = (await http.get("/metrics"))[1].decode()
        for path in (PATH, COUNT):
            assert f'requests_total{{endpoint="{path}",status="200"}} 1.0' in page


async def test_a_message_that_has_no_time_left_is_told_so() -> None:
    async with http_cluster(Cluster()) as http:
        body = {"messages": HI, "max_tokens": 9, "timeout": 1e-9}
        status, data = await http.post(PATH, body)
        assert (status, refused(json.loads(data))["type"]) == (504, "timeout_error")


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        (PATH, {"messages": HI}, 400, "invalid_request_error"),
        (PATH, {"messages": HI, "max_tokens": 9, "model": "x"}, 404, "not_found_error"),
        (COUNT, {"messages": []}, 400, "invalid_request_error"),
        (COUNT, {"messages": HI, "model": "x"}, 404, "not_found_error"),
        (f"{PATH}/batches", {}, 404, "not_found_error"),
    ],
)
async def test_a_refusal_has_the_form_of_anthropics(
    path: str, body: Json, status: int, kind: str
) -> None:
    async with http_cluster(Cluster()) as http:
        got, data = await http.post(path, body)
        assert (got, refused(json.loads(data))["type"]) == (status, kind)


async def test_who_asks_in_another_way_is_told_so_in_the_same_form() -> None:
    async with http_cluster(Cluster()) as http:
        status, data = await http.get(PATH)
        assert (status, refused(json.loads(data))["type"]) == (405, "invalid_request_error")
        async with http.session.post(f"http://{http.url}{PATH}", data=b"hi") as answer:
            assert answer.status == 415
            assert refused(await answer.json())["type"] == "invalid_request_error"
        size = {"Content-Length": str(LARGEST_BODY + 1)}
        async with http.session.post(f"http://{http.url}{PATH}", headers=size) as answer:
            assert answer.status == 413
            assert refused(await answer.json())["type"] == "request_too_large"


async def test_without_nodes_it_is_overloaded() -> None:
    async with http_cluster(Cluster(0, 0)) as http:
        body = {"messages": HI, "max_tokens": 9}
        async with http.session.post(f"http://{http.url}{PATH}", json=body) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "2"
            error = await answer.json()
        assert refused(error)["type"] == "overloaded_error"
        assert error["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", [PATH, COUNT])
async def test_either_header_has_a_clients_key(path: str) -> None:
    guard = Guard(("one", "two"), "admin")
    async with http_cluster(Cluster(), guard=guard) as http:
        body = {"messages": HI, "max_tokens": 3}
        for headers in ({"x-api-key": "one"}, {"Authorization": "Bearer two"}):
            status, _ = await http.post(path, body, **headers)
            assert status == 200
        status, data = await http.post(f"{PATH}/elsewhere", body)
        assert (status, refused(json.loads(data))["type"]) == (401, "authentication_error")
        for headers in ({}, {"x-api-key": "admin"}, {"x-api-key": "three"}):
            status, data = await http.post(path, body, **headers)
            assert (status, refused(json.loads(data))["type"]) == (401, "authentication_error")

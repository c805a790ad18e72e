"""Messages from real processes: two nodes say what one says, whole and streamed."""

from pathlib import Path
from typing import Any

from tests.e2e.cluster import MODEL, Running, running
from tests.fakes.http import Json
from tests.fakes.messages import COUNT, PATH, checked, events_of, message_of, summary

QUESTION = "which way does the river run, and who has seen where it ends?"
WEATHER = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
MUST: dict[str, Any] = {
    "tools": [WEATHER],
    "tool_choice": {"type": "tool", "name": "weather"},
    "max_tokens": 32_000,
}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 20,
    "temperature": 0.8,
    "seed": 11,
    "messages": [{"role": "user", "content": QUESTION}],
    "pdserve": {"timings": True},
}


async def ask(cluster: Running, url: str, **fields: object) -> Json:
    body = {**ASKED, **fields}
    async with cluster.session.post(f"{url}{PATH}?beta=true", json=body) as answer:
        data = await answer.text()
        assert answer.status == 200, data
    if body.get("stream"):
        return message_of(events_of(data))
    return checked(await answer.json())


async def test_a_message_from_two_nodes_is_that_of_one(tiny: Path) -> None:
    async with running(tiny) as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        heard = []
        for door in (cluster.url, f"http://{alone['http_address']}"):
            whole = await ask(cluster, door)
            streamed = await ask(cluster, door, stream=True)
            call = summary(await ask(cluster, door, **MUST))
            assert summary(streamed) == summary(whole)
            stages = {one["stage"] for one in whole["pdserve"]["stages"]}
            assert ("transfer" in stages) is (door == cluster.url)
            async with cluster.session.post(f"{door}{COUNT}", json=ASKED) as answer:
                count = (await answer.json())["input_tokens"]
            usage = whole["usage"]
            assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]
            heard.append((summary(whole), call, count))
        assert heard[0] == heard[1]
        assert heard[0][1][0][:2] == ("tool_use", "weather")
        await cluster.blocks_come_back()

"""Responses from real processes, as OpenAI's client reads them: two nodes say what one says."""

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.e2e.cluster import MODEL, running

ASKED: dict[str, Any] = {
    "model": MODEL,
    "temperature": 0.8,
    "extra_body": {"seed": 11, "pdserve": {"timings": True}},
}
QUESTION = "which way does the river run, and who has seen where it ends?"
WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
MUST: Any = {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}}


async def test_a_response_from_two_nodes_is_that_of_one(tiny: Path) -> None:
    async with running(tiny) as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        heard = []
        for door in (cluster.url, f"http://{alone['http_address']}"):
            async with AsyncOpenAI(base_url=f"{door}/v1", api_key="none") as client:
                whole = await client.responses.create(
                    input=QUESTION, max_output_tokens=20, **ASKED
                )
                async with client.responses.stream(
                    input=QUESTION, max_output_tokens=20, **ASKED
                ) as events:
                    kinds = [event.type async for event in events]
                chat = await client.chat.completions.create(
                    messages=[{"role": "user", "content": QUESTION}], max_tokens=20, **ASKED
                )
                call = (await client.responses.create(input="hi", **MUST, **ASKED)).output[0]
                assert call.type == "function_call"
                assert kinds[-1] in ("response.completed", "response.incomplete")
                assert chat.choices[0].message.content == whole.output_text
                heard.append((whole.output_text, call.arguments, kinds))
                stages = {one["stage"] for one in whole.model_extra["pdserve"]["stages"]}
                assert ("transfer" in stages) is (door == cluster.url)
        assert heard[0][:2] == heard[1][:2]
        await cluster.blocks_come_back()

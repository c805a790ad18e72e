"""Reasoning of a model of random weights, whose form a grammar makes it write, as OpenAI's
client reads it: two nodes say what one says."""

from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.e2e.cluster import MODEL, running
from tests.fakes.checkpoints import CLOSING, make_checkpoint, teach_to_think

THINKS = r"[a-f]{12}\n</think>\n\n[0-9]{4}"
HELD: dict[str, Any] = {"structured_outputs": {"regex": THINKS}}
WANTED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is it like in Paris?"}],
    "temperature": 0,
    "max_tokens": 60,
}


async def both(client: AsyncOpenAI, **more: object) -> tuple[str | None, str | None, int]:
    """Reasoning, content and how many tokens the first has: the same, whole and streamed."""
    create: Any = client.chat.completions.create
    asked = {**WANTED, "extra_body": {**HELD, **more}}
    whole = await create(**asked)
    thought, content, usage = "", "", None
    async for chunk in await create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        for choice in chunk.choices:
            thought += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
        usage = chunk.usage
    message, details = whole.choices[0].message, whole.usage.completion_tokens_details
    assert (thought or None, content or None) == (message.reasoning, message.content)
    assert usage
    assert usage.completion_tokens_details == details
    return message.reasoning, message.content, details.reasoning_tokens if details else 0


async def test_reasoning_is_told_at_a_proxy_and_at_a_node(tiny: Path) -> None:
    async with running(tiny, reasoning_parser="deepseek_r1") as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        heard = []
        for door in (cluster.url, f"http://{alone['http_address']}"):
            async with AsyncOpenAI(base_url=f"{door}/v1", api_key="none") as client:
                thought, content, tokens = await both(client)
                assert len(thought or "") == 12
                assert len(content or "") == 4
                assert tokens > 12 / 4
                assert await both(client, include_reasoning=False) == (None, content, tokens)
                off = {"chat_template_kwargs": {"enable_thinking": False}}
                _, plain, none = await both(client, **off)
                assert (plain, none) == (f"{thought}\n</think>\n\n{content}", 0)
                heard.append((thought, content, tokens))
        assert heard[0] == heard[1]
        await cluster.blocks_come_back()


async def test_a_form_holds_behind_reasoning_at_a_proxy_and_at_a_node(tmp_path: Path) -> None:
    """Of a model that has the marks for tokens, and so may think as it likes."""
    schema = {"name": "answer", "schema": {"enum": ["sunny", "rainy"]}}
    form = {"type": "json_schema", "json_schema": schema}
    bias = {"temperature": 1, "seed": 5, "logit_bias": {str(CLOSING): 2}}
    folder, heard = teach_to_think(make_checkpoint(tmp_path / "thinks")), list[Any]()
    async with running(folder, reasoning_parser="auto") as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        for door in (cluster.url, f"http://{alone['http_address']}"):
            async with AsyncOpenAI(base_url=f"{door}/v1", api_key="none") as client:
                create: Any = client.chat.completions.create
                said = await create(**{**WANTED, **bias, "response_format": form})
                heard.append(said.choices[0].message)
        await cluster.blocks_come_back()
    first, second = heard
    assert (first.reasoning, first.content) == (second.reasoning, second.content)
    assert first.content in ('"sunny"', '"rainy"')
    assert len(first.reasoning) > 5

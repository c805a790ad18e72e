"""Other people's routers drive our nodes: the prompt on one, the answer on the other."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.cluster import MODEL, MOVED, Running, running, tokens_of
from tests.fakes.driver import prompt

ANSWER = 10
LIMITS = ("max_tokens", "max_completion_tokens")
HELD = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True)
class Driver:
    """A router that knows one prefill and one decode node, and nothing of us."""

    cluster: Running
    prefill: dict[str, Any]
    decode: dict[str, Any]

    @property
    def request_id(self) -> str:
        """As vLLM's XpYd proxy makes it."""
        addresses = (self.prefill["zmq_address"], self.decode["zmq_address"])
        return "___prefill_addr_{}___decode_addr_{}_{}".format(*addresses, uuid4().hex)

    async def post(
        self,
        node: dict[str, Any],
        path: str,
        body: dict[str, Any],
        request_id: str = "r",
        status: int = 200,
    ) -> str:
        """Read to the end, whatever it is."""
        url, headers = f"http://{node['http_address']}{path}", {"X-Request-Id": request_id}
        async with self.cluster.session.post(url, json=body, headers=headers) as answer:
            text = await answer.text()
            assert answer.status == status, text
            return text

    async def moved(self) -> float:
        """KV bytes that the decode node has pulled so far."""
        by_node = await self.cluster.metric(MOVED)
        return by_node[self.decode["http_address"]]


@asynccontextmanager
async def driving(tiny: Path) -> AsyncGenerator[Driver]:
    async with running(tiny) as cluster:
        nodes = {node["role"]: node for node in await cluster.nodes()}
        yield Driver(cluster, nodes["prefill"], nodes["decode"])
        await cluster.blocks_come_back()


def completion(tokens: tuple[int, ...], **fields: object) -> dict[str, Any]:
    return {
        "model": MODEL,
        "prompt": list(tokens),
        "temperature": 0,
        "max_tokens": ANSWER,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


def chat(text: str, **fields: object) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    limits = {"max_tokens": ANSWER, "max_completion_tokens": ANSWER}
    wanted = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return {"model": MODEL, "messages": said, **limits, **wanted, **fields}


def read(text: str) -> dict[int, list[int]]:
    """The token ids of each choice, of a stream or of a whole answer."""
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    said = dict[int, list[int]]()
    for chunk in chunks or [json.loads(text)]:
        for choice in chunk["choices"]:
            said.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
    return said


async def test_vllms_xpyd_proxy(tiny: Path) -> None:
    """The same request id on both legs is all there is to go by."""
    bodies = {
        "/v1/completions": completion(prompt(90)),
        "/v1/chat/completions": chat("Who is waiting for the last word?"),
    }
    async with driving(tiny) as driver:
        for path, body in bodies.items():
            expected = read(await driver.post(driver.decode, path, {**body, "cache_salt": "a"}))
            for stream in (False, True):
                before, request_id = await driver.moved(), driver.request_id
                asked = {**body, "stream": stream, "cache_salt": f"{stream}"}
                short: dict[str, Any] = {
                    key: 1 for key in ("max_tokens", "max_completion_tokens") if key in body
                }
                await driver.post(driver.prefill, path, {**asked, **short}, request_id)
                said = read(await driver.post(driver.decode, path, asked, request_id))
                assert said == expected
                assert await driver.moved() > before


async def test_vllms_xpyd_proxy_with_several_choices(tiny: Path) -> None:
    async with driving(tiny) as driver:
        body = completion(prompt(90), n=3, temperature=1.0, seed=5)
        expected = read(await driver.post(driver.decode, "/v1/completions", body))
        request_id, salted = driver.request_id, {**body, "cache_salt": "s"}
        short = {**salted, "max_tokens": 1}
        await driver.post(driver.prefill, "/v1/completions", short, request_id)
        before = await driver.moved()
        said = read(await driver.post(driver.decode, "/v1/completions", salted, request_id))
        assert said == expected
        assert await driver.moved() > before
        assert len({tuple(tokens) for tokens in said.values()}) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_router_that_relays_the_hand_over(tiny: Path, *, stream: bool) -> None:
    async with driving(tiny) as driver:
        expected = await driver.cluster.ask(driver.cluster.url, prompt(70), max_tokens=ANSWER)
        body = completion(prompt(70), cache_salt="s")
        first = {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": HELD}
        held = json.loads(await driver.post(driver.prefill, "/v1/completions", first))
        before, params = await driver.moved(), held["kv_transfer_params"]
        second = {**body, "stream": stream, "kv_transfer_params": params}
        said = read(await driver.post(driver.decode, "/v1/completions", second))
        assert said[0] == tokens_of(expected)
        assert await driver.moved() > before


@pytest.mark.parametrize("several", [{"n": 3}, {"prompt": [prompt(70), prompt(50)]}])
async def test_a_router_that_relays_one_hand_over_for_several_choices(
    tiny: Path, several: dict[str, Any]
) -> None:
    """As vLLM's router does. The KV of the first one moves."""
    async with driving(tiny) as driver:
        body = completion(prompt(70), temperature=1.0, seed=5) | several
        expected = read(await driver.post(driver.decode, "/v1/completions", body))
        salted = {**body, "cache_salt": "s"}
        first = {**salted, "max_tokens": 1, "kv_transfer_params": HELD}
        held = json.loads(await driver.post(driver.prefill, "/v1/completions", first))
        before, params = await driver.moved(), held["kv_transfer_params"]
        second = {**salted, "kv_transfer_params": params}
        said = read(await driver.post(driver.decode, "/v1/completions", second))
        assert said == expected
        assert await driver.moved() > before


@pytest.mark.parametrize(
    ("asked", "status"), [({"prompt_logprobs": 1}, 200), ({"max_tokens": 1_000_000}, 400)]
)
async def test_kv_that_a_decode_leg_does_not_fetch_is_given_up(
    tiny: Path, asked: dict[str, Any], status: int
) -> None:
    """Long before the lease ends."""
    async with driving(tiny) as driver:
        body = completion(prompt(70))
        first = {**body, "max_tokens": 1, "kv_transfer_params": HELD}
        held = json.loads(await driver.post(driver.prefill, "/v1/completions", first))
        second = {**body, **asked, "kv_transfer_params": held["kv_transfer_params"]}
        await driver.post(driver.decode, "/v1/completions", second, status=status)


async def test_a_router_that_speaks_tokens(tiny: Path) -> None:
    """vLLM's token-in, token-out endpoint, one leg after the other."""
    path, sampling = "/inference/v1/generate", {"temperature": 0, "ignore_eos": True}
    async with driving(tiny) as driver:
        expected = await driver.cluster.ask(driver.cluster.url, prompt(70), max_tokens=ANSWER)
        body = {"token_ids": list(prompt(70)), "cache_salt": "s"}
        short = {**sampling, "max_tokens": 1}
        first = {**body, "sampling_params": short, "kv_transfer_params": HELD}
        held = json.loads(await driver.post(driver.prefill, path, first))
        long, params = {**sampling, "max_tokens": ANSWER}, held["kv_transfer_params"]
        second = {**body, "sampling_params": long, "kv_transfer_params": params}
        before = await driver.moved()
        for stream in (False, True):
            said = read(await driver.post(driver.decode, path, {**second, "stream": stream}))
            assert said[0] == tokens_of(expected)
            if not stream:
                assert await driver.moved() > before
                second["kv_transfer_params"] = None  # a ticket is good for one pull
        kept: dict[str, object] = {**HELD, "pdserve": {"keep_open": True}}
        odd = {**first, "kv_transfer_params": kept}
        async with driver.cluster.session.post(
            f"http://{driver.prefill['http_address']}{path}", json=odd
        ) as answer:
            refused = await answer.json()
            assert (answer.status, refused["error"]["param"]) == (400, "kv_transfer_params")

"""KV that was damaged in a real process, between two legs of another make's driver."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from discovery.address import parse_address
from kv_transfer.layout import KvLayout
from kv_transfer.wire import Hello, Welcome
from tests.e2e.cluster import Running, running
from tests.e2e.test_drivers import HELD, completion, read
from tests.fakes.caller import calling
from tests.fakes.driver import prompt

EXPONENT, TURNED = 3, 0x40  # of each little-endian float32
WRONG = 'pdserve_kv_load_failures_total{reason="corrupt"} 1.0'


async def welcome(cluster: Running, node: dict[str, Any]) -> Welcome:
    """What its source tells any sink that fits."""
    async with cluster.session.get(f"http://{node['http_address']}/server_info") as answer:
        facts = await answer.json()
    layout = msgspec.convert(facts["kv_layout"], KvLayout)
    with calling(parse_address(node["zmq_address"])) as caller:
        caller.say(Hello(facts["fingerprint"], layout))
        told = caller.answer()
    assert isinstance(told, Welcome)
    return told


def damage(pid: int, told: Welcome) -> None:
    """Turn one bit of every number in all of its KV."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for region in told.regions:
            kv = bytearray(os.pread(memory.fileno(), size := _size(region), region.address))
            assert len(kv) == size
            kv[EXPONENT::4] = bytes(byte ^ TURNED for byte in kv[EXPONENT::4])
            assert os.pwrite(memory.fileno(), kv, region.address) == size


def _size(region: Any) -> int:  # noqa: ANN401
    return int(region.block_bytes * region.num_blocks)


async def hand_over(cluster: Running, body: dict[str, Any]) -> tuple[int, str, str]:
    """Both legs, with the damage in between; status, answer, and decode's metrics."""
    nodes = {node["role"]: node for node in await cluster.nodes()}
    short = {**body, "max_tokens": 1, "kv_transfer_params": HELD}
    url = "http://{}/v1/completions"
    door = url.format(nodes["prefill"]["http_address"])
    async with cluster.session.post(door, json=short) as answer:
        params = (await answer.json())["kv_transfer_params"]
    damage(cluster.engine("prefill-0"), await welcome(cluster, nodes["prefill"]))
    door = nodes["decode"]["http_address"]
    asked = {**body, "kv_transfer_params": params}
    async with cluster.session.post(url.format(door), json=asked) as answer:
        status, text = answer.status, await answer.text()
    async with cluster.session.get(f"http://{door}/metrics") as answer:
        return status, text, await answer.text()


@pytest.mark.parametrize("connector", ["nixl", "tcp"])
async def test_damaged_kv_is_computed_anew(tiny: Path, connector: str) -> None:
    body = completion(prompt(90))
    settings = {"kv_connector": connector, "kv_cache_memory_bytes": 1 << 20}
    async with running(tiny, kv_checksum="full", **settings) as cluster:
        node = next(one for one in await cluster.nodes() if one["role"] == "decode")
        url = f"http://{node['http_address']}/v1/completions"
        async with cluster.session.post(url, json={**body, "cache_salt": "x"}) as answer:
            expected = read(await answer.text())
        status, text, metrics = await hand_over(cluster, body)
        assert (status, read(text)) == (200, expected)
        assert WRONG in metrics
        await cluster.blocks_come_back()


async def test_damaged_kv_fails_the_leg_where_it_is_to(tiny: Path) -> None:
    """With an error that a driver may answer with another try, not with garbage."""
    settings = {"kv_load_failure": "fail", "kv_cache_memory_bytes": 1 << 20}
    async with running(tiny, **settings) as cluster:
        status, text, metrics = await hand_over(cluster, completion(prompt(90)))
        assert status == 502, text
        assert "CorruptKv" in text
        assert WRONG in metrics
        await cluster.blocks_come_back()


async def test_without_checksums_the_damage_is_in_the_answer(tiny: Path) -> None:
    """So what is found above is there."""
    body, settings = completion(prompt(90)), {"kv_cache_memory_bytes": 1 << 20}
    async with running(tiny, kv_checksum="off", **settings) as cluster:
        node = next(one for one in await cluster.nodes() if one["role"] == "decode")
        url = f"http://{node['http_address']}/v1/completions"
        async with cluster.session.post(url, json={**body, "cache_salt": "x"}) as answer:
            expected = read(await answer.text())
        status, text, _ = await hand_over(cluster, body)
        assert status == 200
        assert read(text) != expected

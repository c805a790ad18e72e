"""A cluster with a key, as processes: it serves, and who does not know the key gets nowhere."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.cpu import children
from deploy.up import PROXY
from discovery.address import parse_address
from discovery.signed_calls import CallKey, Signing
from kv_transfer.wire import TurnedAway
from tests.e2e.cluster import BACK_S, Running, running, stage, tokens_of
from tests.fakes.caller import calling
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

KEY = "nobody-guesses-this"
COMPLETIONS = "/v1/completions"
TOKENS = 12
REFUSED = 'pdserve_kv_connections_refused_total{reason="unsigned"} 1.0'


@pytest.mark.parametrize(("connector", "workers"), [("nixl", 1), ("tcp", 2)])
async def test_a_cluster_with_a_key_serves_and_is_closed(
    tiny: Path, connector: str, workers: int
) -> None:
    reference = Reference(tiny)
    settings = {"kv_connector": connector, "workers": workers, "cluster_key": KEY}
    async with running(tiny, **settings) as cluster:
        prompts = [prompt(100, number) for number in range(3 * workers - 2)]
        calls = (cluster.complete(asked, max_tokens=TOKENS) for asked in prompts)
        for asked, answer in zip(prompts, await asyncio.gather(*calls), strict=True):
            said = tokens_of(answer)
            assert said == reference.greedy(asked, said)
            assert stage(answer, "transfer")["num_bytes"] > 0
        body = {"model": "tiny", "prompt": prompts[0], "max_tokens": TOKENS, "temperature": 0}
        signed = Signing(CallKey.of(KEY)).headers("POST", COMPLETIONS)
        for node in await cluster.nodes():
            url = f"http://{node['http_address']}{COMPLETIONS}"
            for headers, status in (({}, 401), (signed, 200)):
                async with cluster.session.post(url, json=body, headers=headers) as door:
                    assert door.status == status
            with calling(parse_address(node["zmq_address"])) as stranger:
                refusal = stranger.answer()
                assert isinstance(refusal, TurnedAway)
                assert "is --cluster-key the same there?" in refusal.reason
            async with asyncio.timeout(BACK_S):
                while REFUSED not in await page(cluster, node["http_address"]):
                    pass
        names = [child.name for child in (cluster.cluster.proxy, *cluster.cluster.nodes)]
        doors = [cluster.door(name) for name in names]
        doors += children(cluster.door(PROXY))  # workers, if there are any
        engines = [cluster.engine(name) for name in names[1:]]
        shown = facts("cmdline", [*doors, *engines]) + facts("environ", engines)
        await cluster.blocks_come_back()
    assert all(shown)
    assert KEY.encode() not in b"".join(shown)
    assert KEY not in "".join(cluster.lines)
    assert sum("the KV port" in line for line in cluster.lines) == len(names) - 1


async def page(cluster: Running, door: str) -> str:
    """A node's metrics, which are open to everybody."""
    async with cluster.session.get(f"http://{door}/metrics") as answer:
        return await answer.text()


def facts(name: str, pids: Sequence[int]) -> list[bytes]:
    """What others on the machine see of them, and processes that they start."""
    return [Path(f"/proc/{pid}/{name}").read_bytes() for pid in pids]

"""A cluster with a key, as processes: it serves, and who does not know the key gets nowhere."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from discovery.address import parse_address
from discovery.signed_calls import CallKey, Signing
from kv_transfer.wire import TurnedAway
from tests.e2e.cluster import running, stage, tokens_of
from tests.fakes.caller import calling
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

KEY = "nobody-guesses-this"
COMPLETIONS = "/v1/completions"
TOKENS = 12


@pytest.mark.parametrize("connector", ["nixl", "tcp"])
async def test_a_cluster_with_a_key_serves_and_is_closed(tiny: Path, connector: str) -> None:
    asked, reference = prompt(100, 0), Reference(tiny)
    async with running(tiny, kv_connector=connector, cluster_key=KEY) as cluster:
        answer = await cluster.complete(asked, max_tokens=TOKENS)
        said = tokens_of(answer)
        assert said == reference.greedy(asked, said)
        assert stage(answer, "transfer")["num_bytes"] > 0
        body = {"model": "tiny", "prompt": asked, "max_tokens": TOKENS, "temperature": 0}
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
        names = [child.name for child in (cluster.cluster.proxy, *cluster.cluster.nodes)]
        doors = [cluster.door(name) for name in names]
        engines = [cluster.engine(name) for name in names[1:]]
        shown = command_lines([*doors, *engines])
        await cluster.blocks_come_back()
    assert all(shown)
    assert KEY.encode() not in b"".join(shown)
    assert KEY not in "".join(cluster.lines)
    assert sum("the KV port" in line for line in cluster.lines) == len(names) - 1


def command_lines(pids: Sequence[int]) -> list[bytes]:
    """What anybody on the machine sees of them."""
    return [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]

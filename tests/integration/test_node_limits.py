"""What waits at the gate for a model's nodes, over real HTTP."""

import asyncio

from engine.request import PoolingRequest, RequestId
from proxy.admission.gate import GatedEmbedder
from proxy.admission.pools import NodeCounts
from tests.fakes.embedder import FakeEmbedder
from tests.integration.test_admission import crowd


async def test_the_first_token_of_one_makes_room_for_the_prompt_of_the_next() -> None:
    async with crowd(prefill_requests=1) as clients, asyncio.TaskGroup() as tasks:
        clients.gate.nodes = lambda _model: NodeCounts(1, 1)
        clients.door.ran.clear()
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        tasks.create_task(clients.ask())
        await clients.waiting(1)
        clients.door.ran.set()
        await clients.at_work(2)
        assert clients.gate.admission.in_use.choices == 2
        clients.door.go.set()


async def test_each_prompt_of_several_makes_room_when_its_own_first_token_is_there() -> None:
    async with crowd(prefill_requests=3) as clients, asyncio.TaskGroup() as tasks:
        clients.gate.nodes = lambda _model: NodeCounts(1, 1)
        clients.door.ran.clear()
        clients.door.slow = 3
        tasks.create_task(clients.ask(prompt=[[1, 2, 3], [1, 2], [2, 1]]))
        for _ in range(2):
            tasks.create_task(clients.ask(prompt=[1, 2, 3]))
        await clients.at_work(5)
        tasks.create_task(clients.ask(prompt=[1]))
        await clients.waiting(1)
        clients.door.ran.set()
        clients.door.go.set()


async def test_who_would_wait_too_long_for_a_first_token_is_told_so_at_once() -> None:
    async with crowd(prefill_requests=1) as clients, asyncio.TaskGroup() as tasks:
        now, clients.gate.nodes = [100.0], lambda _model: NodeCounts(1, 1)
        clients.gate.clock = lambda: now[0]
        clients.door.ran.clear()
        body = {"prompt": "the", "max_tokens": 2, "stream": True}
        first = tasks.create_task(clients.session.post(clients.url, json=body))
        await clients.at_work(1)
        now[0] = 150.0
        clients.door.ran.set()
        await (await first).content.readany()
        clients.door.ran.clear()
        tasks.create_task(clients.ask())
        await clients.at_work(2)
        assert (await clients.ask(timeout=20.0))[::2] == (503, "30")
        clients.door.ran.set()
        clients.door.go.set()
        await first.result().read()


async def test_vectors_do_not_wait_for_decode_nodes() -> None:
    async with crowd(node_requests=1) as clients, asyncio.TaskGroup() as tasks:
        clients.gate.nodes = lambda _model: NodeCounts(1, 1)
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        embedder = GatedEmbedder(FakeEmbedder(), clients.gate)
        asked = PoolingRequest(RequestId("e"), (1, 2))
        assert len(await embedder.embed([asked])) == 1
        clients.door.go.set()


async def test_a_line_for_one_models_nodes_that_is_full_is_503() -> None:
    async with (
        crowd(node_requests=1, node_queued=1) as clients,
        asyncio.TaskGroup() as tasks,
    ):
        clients.gate.nodes = lambda _model: NodeCounts(1)
        tasks.create_task(clients.ask())
        await clients.at_work(1)
        tasks.create_task(clients.ask())
        await clients.waiting(1)
        refused, said, later = await clients.ask()
        assert (refused, later) == (503, "1")
        assert "in line for the nodes of this model" in said["error"]["message"]
        assert clients.gate.admission.refused == {"model_queue_full": 1}
        clients.door.go.set()

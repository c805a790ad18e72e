"""Whether a gRPC server serves: what its health service and its watchers are told."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from api.grpc.health import LEAVES, NOT_SERVING, SERVING, Health
from api.grpc.protos import inference_pb2, vllm_engine_pb2
from api.grpc.server import SERVICES, VLLM_ENGINE
from tests.fakes.grpc_server import FACTS, Caller, Refused, refusal, serving
from tests.fakes.text import saying


@pytest_asyncio.fixture(loop_scope="session")
async def caller() -> AsyncGenerator[Caller]:
    async with serving(saying("the dog")) as caller:
        yield caller


def health(caller: Caller) -> Any:  # noqa: ANN401  generated without types
    stub: Any = health_pb2_grpc.HealthStub
    return stub(caller.channel)


async def checked(caller: Caller) -> set[int]:
    """What the services' health is."""
    requests = [health_pb2.HealthCheckRequest(service=name) for name in ("", *SERVICES)]
    return {(await health(caller).Check(request)).status for request in requests}


async def test_a_server_with_a_healthy_engine_serves(caller: Caller) -> None:
    assert await checked(caller) == {SERVING}
    said = await caller.ask("HealthCheck", VLLM_ENGINE)
    assert said == vllm_engine_pb2.HealthCheckResponse(healthy=True, message="ok")


async def test_a_server_with_a_sick_engine_does_not() -> None:
    facts = replace(FACTS, trouble=lambda: "it is silent")
    async with serving(saying("the dog"), facts=facts) as caller:
        assert await checked(caller) == {NOT_SERVING}
        said = await caller.ask("HealthCheck", VLLM_ENGINE)
        assert said == vllm_engine_pb2.HealthCheckResponse(
            healthy=False, message="it is silent"
        )


async def test_watchers_hear_of_trouble_and_of_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("api.grpc.server.LOOK_S", 0.0)
    troubles: list[str | None] = [None]
    facts = replace(FACTS, trouble=lambda: troubles[-1])
    async with serving(saying("the dog"), facts=facts) as caller, asyncio.timeout(10):
        request = health_pb2.HealthCheckRequest(service=SERVICES[0])
        call = health(caller).Watch(request)
        running = asyncio.create_task(caller.server.run())
        assert (await call.read()).status == SERVING
        troubles.append("it is silent")
        assert (await call.read()).status == NOT_SERVING
        troubles.append(None)
        assert (await call.read()).status == SERVING
        await caller.server.stop_taking_calls()
        assert (await call.read()).status == NOT_SERVING
        running.cancel()
        await asyncio.wait([running])
        call.cancel()


@pytest.mark.parametrize("told", [False, True])
async def test_watchers_do_not_keep_a_server_that_stops(*, told: bool) -> None:
    async with serving(saying("the dog")) as caller, asyncio.timeout(10):
        watches = [
            health(caller).Watch(health_pb2.HealthCheckRequest(service=name))
            for name in ("", SERVICES[0], SERVICES[0])
        ]
        for call in watches:
            assert (await call.read()).status == SERVING
        if told:
            await caller.server.stop_taking_calls()
            for call in watches:
                assert (await call.read()).status == NOT_SERVING
        await caller.server.close(60.0)
        for call in watches:
            if not told:
                assert (await call.read()).status == NOT_SERVING
            ended = await refusal(call.read())
            assert ended == Refused(grpc.StatusCode.UNAVAILABLE, LEAVES)


async def test_a_watcher_that_is_cancelled_is_told_nothing_more() -> None:
    told = asyncio.Queue[int]()

    class Watcher:
        async def write(self, reply: health_pb2.HealthCheckResponse) -> None:
            told.put_nowait(reply.status)

    watching: Any = Health().Watch
    task = asyncio.create_task(watching(health_pb2.HealthCheckRequest(), Watcher()))
    assert await told.get() == SERVING
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert told.empty()


async def test_a_watcher_that_leaves_is_forgotten(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(10):
        call = health(caller).Watch(health_pb2.HealthCheckRequest(service=""))
        await call.read()
        call.cancel()
        await caller.server.close(60.0)
    assert caplog.records == []


async def test_who_leaves_says_so_and_takes_calls_as_before(caller: Caller) -> None:
    await caller.server.stop_taking_calls()
    assert await checked(caller) == {NOT_SERVING}
    said = await caller.generate(inference_pb2.GenerateRequest(text="the cat"))
    assert said.outputs.text == "the dog"

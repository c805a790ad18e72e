"""A node of vLLM that registers by ZMQ does not say its model, and is asked for it."""

import asyncio
import time

import msgspec
import pytest

from discovery.registration import Registration, Role
from proxy.nodes.model_names import ModelNameProbe, model_at
from proxy.nodes.session import open_session
from tests.fakes.raw_http import answer, raw_server
from tests.fakes.waiting import comes_true
from tests.fakes.watched import WatchedRegistry

P, D = Role.PREFILL, Role.DECODE
PATIENCE_S = 60


def says(model: str, **more: object) -> list[bytes]:
    return [answer(200, {"data": [{"id": model, **more}]})]


async def test_it_is_known_by_the_model_that_it_serves_now_however_often_it_registers() -> None:
    registry = WatchedRegistry(ttl_s=60)
    scripts = [[answer(404, {})], *[says("small")] * 3, *[says("large")] * 50]
    async with raw_server(*scripts) as node, open_session() as session:
        said = Registration(D, node.address, "")
        registry.apply(said, now=time.monotonic())
        naming = asyncio.create_task(ModelNameProbe(session, registry, ask_s=0.0).run())
        try:
            for model in ("small", "large"):
                async with asyncio.timeout(PATIENCE_S):
                    while [one.registration.model for one in registry.all()] != [model]:
                        registry.apply(said, now=time.monotonic())
                        await asyncio.sleep(0)
            assert registry.nodes(D, now=time.monotonic(), model=("large", None))
        finally:
            naming.cancel()
            await asyncio.gather(naming, return_exceptions=True)


@pytest.mark.parametrize(
    ("told", "known"),
    [(4096, 4096), (None, None), (0, None), ("all", None), (True, None), (10**30, None)],
)
@pytest.mark.parametrize("ours", [False, True])
async def test_its_context_is_known_too_where_it_tells(
    told: object, known: int | None, ours: bool
) -> None:
    """Also where its model is ours, whatever it calls it."""
    registry = WatchedRegistry(ttl_s=60)
    script = says("small", max_model_len=told)
    async with raw_server(*[script] * 50) as node, open_session() as session:
        said = Registration(D, node.address, "")
        registry.apply(said, now=time.monotonic())
        naming = asyncio.create_task(
            ModelNameProbe(session, registry, ask_s=0.0, fixed_name=ours).run()
        )
        try:
            await comes_true(lambda: len(node.heads) > 2)  # two answers were taken in
        finally:
            naming.cancel()
            await asyncio.gather(naming, return_exceptions=True)
        registry.apply(said, now=time.monotonic())  # it goes on to say nothing of it
        (one,) = registry.all()
        model = None if ours else "small"
        assert (one.registration.model, one.registration.max_model_len) == (model, known)


async def test_of_several_models_the_first_counts() -> None:
    """vLLM lists adapters behind the model that they belong to."""
    cards = [{"id": "base", "max_model_len": 64}, {"id": "adapter", "parent": "base"}]
    script = [answer(200, {"data": cards})]
    async with raw_server(script) as node, open_session() as session:
        said = await model_at(session, node.address)
    assert said is not None
    assert (said.id, said.longest) == ("base", 64)


async def test_it_is_not_asked_all_the_time() -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with raw_server(*[says("small")] * 9) as node, open_session() as session:
        registry.apply(Registration(D, node.address, ""), now=time.monotonic())
        naming = asyncio.create_task(ModelNameProbe(session, registry, PATIENCE_S).run())
        try:
            await comes_true(lambda: registry.all()[0].registration.model == "small")
            for _ in range(1_000):
                await asyncio.sleep(0)
            assert len(node.heads) == 1
        finally:
            naming.cancel()
            await asyncio.gather(naming, return_exceptions=True)


@pytest.mark.parametrize("name", ["small\nlarge", "s" * 1_000])
async def test_a_name_that_no_log_line_can_hold_is_none(name: str) -> None:
    async with raw_server(says(name)) as node, open_session() as session:
        assert await model_at(session, node.address) is None


async def test_who_says_it_himself_is_not_asked() -> None:
    registry = WatchedRegistry(ttl_s=60)
    who = (Registration(P, "h:1", "h:9", "ours"), Registration(P, "h:2", "h:9", model="m"))
    silent = Registration(P, "h:3", "h:9")
    for said in (*who, silent):
        registry.apply(said, now=1.0)
    registry.apply(Registration(P, "h:4", "h:9"), now=1.0, static=True)  # added by hand
    async with open_session() as session:
        nameless = ModelNameProbe(session, registry).nameless()
    assert [one.node_id for one in nameless] == ["h:3"]
    registry.name("h:3", "theirs")
    own = msgspec.structs.replace(silent, model="its own")
    registry.apply(own, now=2.0)
    assert registry.at("h:3").registration.model == "its own"  # type: ignore[union-attr]

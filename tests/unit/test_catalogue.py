"""Several models behind one door: who is found by which name, and what is told meanwhile."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from api.defaults import OPENAI
from api.errors import BadRequest, ModelNotFound, NoTokenizer, TooBusy
from api.models import find_model, list_models
from api.text_files import pack
from discovery.registration import Role
from proxy.errors import NodeFailed, NoNodeAvailable
from proxy.models.catalogue import ModelSettings
from proxy.models.model_pools import ConfiguredNames
from proxy.models.text_store import ModelText
from tests.fakes.catalogue import Rig
from tests.fakes.text import byte_level, parcel_of_text

P, D = Role.PREFILL, Role.DECODE
TTL_S = 6.0
CHAT = [{"role": "user", "content": "hi"}]
GARBAGE = pack({"tokenizer.json": b"{"})


def ids(rig: Rig) -> list[str]:
    return [card.id for card in list_models(rig.catalogue).data]


async def test_a_name_picks_its_pool() -> None:
    rig = Rig()
    rig.beat("a:1", model="a", aliases=("nick",))
    rig.beat("b:1", model="b")
    assert (await rig.find("nick")).key == ("a", "f")
    assert (await rig.find("b")).key == ("b", "f")
    assert (await rig.find("nick")).resolve_name("nick") == "nick"


async def test_an_unknown_name_is_404_and_hears_which_there_are() -> None:
    rig = Rig()
    rig.beat("a:1", model="a")
    with pytest.raises(ModelNotFound, match=r"`b` does not exist\. There are: a") as refusal:
        await rig.find("b")
    assert (refusal.value.status, refusal.value.code) == (404, "model_not_found")


@pytest.mark.parametrize("nothing", [None, ""])
async def test_who_names_no_model_gets_the_only_one(nothing: str | None) -> None:
    rig = Rig()
    rig.beat("a:1", model="a")
    assert (await rig.find(nothing)).key == ("a", "f")
    rig.beat("b:1", model="b")
    with pytest.raises(BadRequest, match="model is missing; there are: a, b"):
        await rig.find(nothing)


async def test_all_that_live_nodes_serve_is_listed_once() -> None:
    rig = Rig()
    assert ids(rig) == []
    rig.beat("a:1", model="a", aliases=("nick",), max_model_len=100)
    rig.beat("a:2", model="a", fingerprint="g", max_model_len=50)
    rig.beat("b:1", model="b")
    assert ids(rig) == ["a", "nick", "b"]
    assert find_model(rig.catalogue, "a").max_model_len == 50
    rig.registry.remove("b:1")
    assert ids(rig) == ["a", "nick"]
    with pytest.raises(ModelNotFound):
        find_model(rig.catalogue, "b")


@pytest.mark.parametrize("address", ["d:1", "d:2"])
async def test_a_node_that_is_started_anew_serves_under_the_same_names(address: str) -> None:
    """At its address or at another, with its text, and listed once (sglang#10827)."""
    rig, parcel = Rig(), parcel_of_text()
    rig.beat("d:1", aliases=("nick",), parcel=parcel, node_id="before")
    await rig.load()
    if address == "d:2":
        rig.registry.expire(now=rig.now + TTL_S)
        assert ids(rig) == []
    rig.now += TTL_S
    rig.beat(address, aliases=("nick",), parcel=parcel, node_id="after")
    assert ids(rig) == ["m", "nick"]
    assert [one.node_id for one in rig.registry.all()] == ["after"]
    assert (await rig.find("nick", text=True)).text.render(CHAT, {})
    assert rig.nodes.asked == ["d:1"]


async def test_before_anybody_registers_it_is_503() -> None:
    with pytest.raises(NoNodeAvailable):
        await Rig().find("a")


async def test_a_model_whose_nodes_are_gone_is_known_for_a_while() -> None:
    rig = Rig()
    rig.catalogue.model_wait.wait_s = 30.0
    rig.beat("a:1", model="a")
    rig.beat("b:1", model="b")
    await rig.find("a")
    rig.registry.remove("a:1")
    assert (await rig.find("a")).key == ("a", "f")  # and then waits for a node
    rig.now += 31
    with pytest.raises(ModelNotFound):
        await rig.find("a")


async def test_right_after_the_start_a_name_is_waited_for() -> None:
    rig = Rig()
    rig.catalogue.model_wait.startup_s = 3.0
    finding = asyncio.create_task(rig.find("a"))
    await asyncio.sleep(0)
    rig.beat("a:1", model="a")
    assert (await finding).key == ("a", "f")


async def test_two_models_of_one_name_share_its_requests_by_their_nodes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    for number in range(3):
        rig.beat(f"d:{number}")
        rig.beat(f"p:{number}", P)
    rig.beat("d:9", fingerprint="g")
    found = [(await rig.find("m", rid=f"r{number}")).key for number in range(200)]
    assert set(found) == {("m", "f")}  # the new one is not whole yet
    rig.beat("p:9", P, fingerprint="g")
    shares = Counter([(await rig.find("m", rid=f"r{number}")).key for number in range(400)])
    assert 60 < shares["m", "g"] < 140
    assert (
        len([one for one in caplog.records if "2 models that are not the same" in one.message])
        == 1
    )
    for number in range(3):
        rig.registry.remove(f"d:{number}")
    assert (await rig.find("m")).key == ("m", "g")


async def test_a_model_without_its_text_yet_gets_no_text() -> None:
    rig, parcel = Rig(), parcel_of_text()
    rig.beat("d:1", parcel=parcel)
    await rig.load()
    other = parcel_of_text("another template")
    rig.beat("d:2", fingerprint="g", parcel=other)
    found = {(await rig.find("m", text=True, rid=f"r{i}")).key for i in range(50)}
    assert found == {("m", "f")}
    await rig.load()
    found = {(await rig.find("m", text=True, rid=f"r{i}")).key for i in range(50)}
    assert found == {("m", "f"), ("m", "g")}


async def test_a_new_template_of_the_same_model_takes_over_once_it_is_loaded() -> None:
    rig, old = Rig(), parcel_of_text()
    rig.beat("d:1", parcel=old)
    await rig.load()
    new = parcel_of_text("another template")
    for address in ("d:2", "d:3"):
        rig.beat(address, parcel=new)
    assert (await rig.find("m", text=True)).text.render(CHAT, {}) != "another template"
    await rig.load()
    assert (await rig.find("m", text=True)).text.render(CHAT, {}) == "another template"


async def test_a_model_that_is_long_gone_is_not_among_those_that_may_be_meant() -> None:
    rig = Rig()
    rig.beat("a:1", model="a")
    rig.beat("b:1", model="b")
    await rig.find("a")
    rig.registry.remove("a:1")
    rig.catalogue.listed()  # nothing but time changes from here on
    rig.catalogue.model_wait.wait_s = 30.0
    rig.registry.changes += 1
    rig.catalogue.listed()
    rig.now += 31
    rig.beat("b:1", model="b")
    assert (await rig.find(None)).key == ("b", "f")
    rig.registry.remove("b:1")
    rig.catalogue.listed()
    rig.now += 31
    with pytest.raises(NoNodeAvailable):
        await rig.find(None)


async def test_a_model_whose_nodes_fail_gets_no_request_while_another_of_its_name_is_well() -> (
    None
):
    rig = Rig()
    for fingerprint in ("f", "g"):
        rig.beat(f"p:{fingerprint}", P, fingerprint=fingerprint)
        rig.beat(f"d:{fingerprint}", fingerprint=fingerprint)
    assert {(await rig.find("m", rid=f"r{i}")).key for i in range(50)} == {
        ("m", "f"),
        ("m", "g"),
    }
    failure = NodeFailed("d:g", "connection lost", retryable=True)
    rig.health.record_failure(failure, begun=rig.now, now=rig.now)
    assert {(await rig.find("m", rid=f"r{i}")).key for i in range(50)} == {("m", "f")}


CONFIGURED = ModelSettings(ConfiguredNames(frozenset({"m"}), ("m", "nick")))


@pytest.mark.parametrize("name", ["m", "nick", None])
async def test_a_configured_model_without_nodes_is_503(name: str | None) -> None:
    """Before they come, and after they have gone; a 501 would be for ever."""
    rig = Rig(CONFIGURED)
    with pytest.raises(TooBusy, match="No node serves `m` now"):
        await rig.find(name, text=True)
    rig.beat("m:1", model="m")
    assert (await rig.find(name)).key == ("m", "f")
    rig.registry.remove("m:1")
    rig.now += 1
    with pytest.raises(TooBusy, match="No node serves `m` now"):
        await rig.find(name, text=True)


async def test_another_name_is_503_as_long_as_nobody_is_there() -> None:
    """It may be that of an adapter, which only nodes know."""
    rig = Rig(CONFIGURED)
    with pytest.raises(NoNodeAvailable):
        await rig.find("sql")
    rig.beat("m:1", model="m")
    with pytest.raises(ModelNotFound, match=r"There are: m"):
        await rig.find("sql")


async def test_nodes_of_another_name_do_not_get_the_configured_models_text() -> None:
    """As a vLLM node that was started without --served-model-name calls its model."""
    text = ModelText(byte_level(), OPENAI, None)
    rig = Rig(replace(CONFIGURED, text=text))
    rig.beat("m:1", model="/models/m")
    with pytest.raises(NoTokenizer, match=r"--tokenizer is for `m`; do they serve it under"):
        await rig.find("/models/m", text=True)
    without = Rig()
    without.beat("m:1", model="/models/m")
    with pytest.raises(NoTokenizer, match=r"start the proxy with --tokenizer"):
        await without.find("/models/m", text=True)

"""What a model's text is made with comes from its nodes: once, whole, or with a reason."""

import asyncio
import errno
from typing import Any

import pytest

from api.errors import NoTokenizer, TooBusy
from api.text_files import BadParcel, ParcelTooLarge, TextParcel, pack, unpack
from discovery.registration import Registration, Role
from proxy.models.catalogue import ModelSettings
from proxy.models.fetching import NotFetched
from proxy.models.model_pools import ConfiguredNames
from proxy.models.text_store import FIRST_PAUSE_S, ModelText, read_text
from tests.fakes.catalogue import Rig
from tests.fakes.text import byte_level, parcel_of_text

P, D = Role.PREFILL, Role.DECODE
CHAT = [{"role": "user", "content": "hi"}]
GARBAGE = pack({"tokenizer.json": b"{"})


async def test_text_comes_from_the_nodes_once_for_a_digest() -> None:
    rig, parcel = Rig(), parcel_of_text()
    rig.beat("a:1", parcel=parcel)
    rig.beat("a:2", parcel=parcel)
    rig.beat("n:1", model="n", parcel=parcel)
    with pytest.raises(TooBusy, match="on their way") as refusal:
        await rig.find("m", text=True)
    assert refusal.value.retry_after_s
    await rig.load()
    assert (await rig.find("m", text=True)).text.encode("the") == byte_level().encode("the")
    assert (await rig.find("n", text=True)).codec
    await rig.load()
    assert len(rig.nodes.asked) == 1


async def test_token_ids_work_before_there_is_text() -> None:
    rig = Rig()
    rig.beat("a:1", parcel=parcel_of_text())
    found = await rig.find("m", text=False)
    assert found.text.decode([1, 2, 3]) == ""


async def test_text_that_is_on_its_way_is_waited_for() -> None:
    rig = Rig()
    rig.catalogue.model_wait.wait_s = 30.0
    rig.beat("a:1", parcel=parcel_of_text())
    running = asyncio.create_task(rig.catalogue.run())
    try:
        assert (await rig.find("m", text=True)).codec
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_no_more_wait_for_text_than_may_and_none_for_longer_than_it_has_time() -> None:
    rig = Rig()
    rig.catalogue.model_wait.wait_s, rig.catalogue.model_wait.most = 30.0, 2
    rig.beat("a:1", parcel=parcel_of_text())
    waiting = [asyncio.create_task(rig.find("m", text=True)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(TooBusy, match="on their way"):
        await rig.find("m", text=True)
    await rig.load()
    assert all(one.codec for one in await asyncio.gather(*waiting))
    assert rig.catalogue.model_wait.waiting == 0
    rig.beat("b:1", model="other", parcel=GARBAGE)
    hurried = asyncio.create_task(rig.catalogue.find("other", "r", timeout_s=2.0))
    await asyncio.sleep(0)
    assert not hurried.done()
    rig.now += 2.0
    with pytest.raises(TooBusy, match="on their way"):
        await hurried


async def test_requests_in_token_ids_wait_for_the_defaults_that_come_with_text() -> None:
    files = unpack(parcel_of_text().data, parcel_of_text().digest)
    rig = Rig()
    rig.catalogue.model_wait.wait_s = 30.0
    rig.beat("a:1", parcel=pack({**files, "generation_config.json": b'{"temperature": 0.5}'}))
    asked = asyncio.create_task(rig.find("m", text=False))
    await asyncio.sleep(0)
    assert not asked.done()
    await rig.load()
    assert (await asked).defaults.temperature == 0.5


async def test_they_do_not_wait_where_it_cannot_be_had_for_now() -> None:
    rig = Rig()
    rig.catalogue.model_wait.wait_s = 30.0
    rig.nodes.parcels["a:1"] = NotFetched("cut")
    rig.beat("a:1", parcel=parcel_of_text())
    await rig.load()
    assert (await rig.find("m", text=False)).text.decode([1]) == ""


async def test_another_node_is_asked_where_one_dies_or_lies() -> None:
    rig, parcel = Rig(), parcel_of_text()
    rig.nodes.parcels |= {"a:1": NotFetched("cut"), "a:2": BadParcel("another digest")}
    for address in ("a:1", "a:2", "a:3"):
        rig.beat(address, parcel=parcel)
    await rig.load()
    assert rig.nodes.asked == ["a:1", "a:2", "a:3"]
    assert (await rig.find("m", text=True)).codec


async def test_what_nobody_gives_is_asked_for_later_and_later() -> None:
    rig, parcel = Rig(), parcel_of_text()
    rig.nodes.parcels["a:1"] = NotFetched("cut")
    rig.beat("a:1", parcel=parcel)
    for pause_s in (0.5, 1.0, 2.0):
        await rig.load()
        with pytest.raises(TooBusy, match=r"on their way \(cut\)"):
            await rig.find("m", text=True)
        rig.now += pause_s - 0.01
        assert not rig.catalogue.wanted()
        rig.now += 0.02
        assert rig.catalogue.wanted()
    rig.nodes.parcels["a:1"] = parcel
    await rig.load()
    assert (await rig.find("m", text=True)).codec


@pytest.mark.parametrize("bad", [GARBAGE, ParcelTooLarge("larger than can be")])
async def test_what_cannot_be_used_is_said_and_never_silent(
    bad: TextParcel | Exception,
) -> None:
    rig = Rig()
    parcel = bad if isinstance(bad, TextParcel) else parcel_of_text()
    rig.nodes.parcels["a:1"] = bad
    rig.beat("a:1", parcel=parcel)
    await rig.load()
    with pytest.raises((NoTokenizer, TooBusy), match=r"cannot be used|larger than can be"):
        await rig.find("m", text=True)
    assert (await rig.find("m", text=False)).text.decode([1]) == ""


@pytest.mark.parametrize(
    "passing", [OSError(errno.EMFILE, "too many open files"), TimeoutError()]
)
async def test_what_could_not_be_loaded_for_a_moment_is_loaded_later(
    passing: Exception,
) -> None:
    rig, parcel, troubles = Rig(), parcel_of_text(), [passing]

    def read(digest: str, data: bytes, generation_config: str) -> ModelText:
        if troubles:
            raise troubles.pop()
        return read_text(digest, data, generation_config)

    rig.texts.read = read
    rig.beat("a:1", parcel=parcel)
    await rig.load()
    with pytest.raises(TooBusy, match="on their way") as refusal:
        await rig.find("m", text=True)
    said = str(refusal.value)
    assert "too many open files" in said or "not loaded within" in said
    rig.now += FIRST_PAUSE_S + 0.01
    await rig.load()
    assert (await rig.find("m", text=True)).codec


async def test_defaults_that_cannot_be_meant_are_not_tried_again() -> None:
    files = unpack(parcel_of_text().data, parcel_of_text().digest)
    rig = Rig()
    rig.beat("a:1", parcel=pack({**files, "generation_config.json": b'{"top_p": "all"}'}))
    await rig.load()
    with pytest.raises(NoTokenizer, match="cannot be used: its defaults"):
        await rig.find("m", text=True)
    rig.now += 1000
    assert not rig.catalogue.wanted()


async def test_nodes_that_bring_no_tokenizer_are_named_with_the_way_out() -> None:
    rig = Rig()
    rig.registry.apply(Registration(D, "v:1", "", model="m"), now=rig.now)
    with pytest.raises(NoTokenizer, match=r"not pdserve's.*--tokenizer"):
        await rig.find("m", text=True)


async def test_a_tokenizer_without_a_name_is_for_those_who_bring_none() -> None:
    own, parcel = ModelText(byte_level()), parcel_of_text()
    rig = Rig(ModelSettings(ConfiguredNames(frozenset(), ("model",)), own))
    rig.registry.apply(Registration(D, "v:1", "", model="v"), now=rig.now)
    rig.beat("a:1", parcel=parcel)
    assert (await rig.find("v", text=True)).codec is own.codec
    with pytest.raises(TooBusy):
        await rig.find("m", text=True)


async def test_a_tokenizer_of_the_settings_wins_for_the_model_that_they_name() -> None:
    own, parcel = ModelText(byte_level()), parcel_of_text()
    parsers: dict[str, Any] = {"tool_call_parser": "mistral", "reasoning_parser": "qwen3"}
    rig = Rig(ModelSettings(ConfiguredNames(frozenset({"m"}), ("m",)), own, 7, **parsers))
    assert (await rig.find("m", text=True)).codec is own.codec
    rig.beat("a:1", parcel=parcel)
    rig.beat("n:1", model="n", parcel=parcel)
    await rig.load()
    mine, other = await rig.find("m", text=True), await rig.find("n", text=True)
    assert (mine.codec is own.codec, mine.max_model_len()) == (True, 7)
    assert (other.codec is own.codec, other.max_model_len()) == (False, 100)
    assert (mine.tool_call_parser, other.tool_call_parser) == ("mistral", "auto")
    assert (mine.reasoning_parser, other.reasoning_parser) == ("qwen3", "none")
    assert (await rig.find(None)).key == ("m", "f")

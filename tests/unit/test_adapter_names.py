"""Who asks for an adapter gets it or hears that there is none: never the model in its place."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from quart import Quart

from api.errors import ModelNotFound
from api.generator import Event, Leg, PromptEvent, TokenEvent
from api.models import find_model, list_models
from api.served import ServedModel
from discovery.errors import MalformedRegistration
from discovery.intake import check_names
from discovery.registration import Role, from_map, pack, read, to_map, unpack
from discovery.registry import Registry
from discovery.signature import Verifier, sign
from engine.grammars.checking import GrammarChecker
from engine.request import FinishReason, Request, RequestId
from kv_transfer.layout import KvLayout
from node.identity import NodeIdentity
from node.ipc import NO_LOAD, EngineReady, SubmitLeg, decode_from_engine, decode_to_engine
from node.ipc import encode as encode_message
from node.legs import LegFinder
from node.metrics import NodeMetrics
from node.routes import NodeRoutes
from proxy.foreign.bodies import UnsupportedByVllm, completion_body, generate_body
from tests.fakes.asking import chat, complete
from tests.fakes.embedder import EMBEDS, FakeEmbedder
from tests.fakes.http import Client
from tests.fakes.pooling_door import param
from tests.fakes.text import byte_level, saying

LAYOUT = KvLayout("bytes", 1, 1, (4,))
READY = EngineReady("f", LAYOUT, 512, 21001, NO_LOAD, adapters=("sql", "law"))
HERE = NodeIdentity.of(Role.DECODE, "n", ("m", "nick"), ("h:1", "h:2"), READY).registration
CALL = {"token_ids": [1, 2], "sampling_params": {"max_tokens": 1}}
SERVED = ServedModel(
    ("m", "nick"), byte_level(), lambda: 200, created=7, pooling=EMBEDS, adapters=("sql",)
)


class Engine:
    """Answers with one token, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked = list[Request]()

    async def events(self, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        self.asked.append(request)
        yield PromptEvent(0)
        yield TokenEvent((3,), FinishReason.LENGTH)


def client_of(engine: Any) -> Any:  # noqa: ANN401
    app, legs = Quart("node"), LegFinder("h:2")
    door = NodeRoutes(engine, NodeMetrics(), lambda: HERE, legs, GrammarChecker())
    app.register_blueprint(door.blueprint())
    return app.test_client()


def test_an_engine_says_what_it_has_loaded_and_its_node_registers_it() -> None:
    assert decode_from_engine(encode_message(READY)) == READY
    assert HERE.adapters == ("sql", "law")
    assert read(pack(to_map(HERE))) == from_map(unpack(pack(to_map(HERE)))) == HERE
    assert "adapters" not in to_map(msgspec.structs.replace(HERE, adapters=()))


def test_a_signature_covers_them() -> None:
    signed = sign(to_map(HERE), b"key", wall_time=1.0)
    Verifier(b"key").check(signed, wall_time=1.0)
    with pytest.raises(MalformedRegistration):
        Verifier(b"key").check({**signed, "adapters": ["other"]}, wall_time=1.0)


@pytest.mark.parametrize("name", ["a\nb", "n" * 513])
def test_a_name_that_must_not_get_into_a_log_is_refused(name: str) -> None:
    with pytest.raises(MalformedRegistration, match="a name"):
        check_names(msgspec.structs.replace(HERE, adapters=("sql", name)))


def test_proxies_look_again_when_a_node_has_others() -> None:
    registry = Registry()
    registry.apply(HERE, now=0)
    before = registry.changes
    registry.apply(msgspec.structs.replace(HERE, adapters=("sql",)), now=1)
    assert registry.changes == before + 1


async def test_the_engine_process_is_told_which_one_is_asked_for() -> None:
    request = Request(RequestId("r"), (1,), adapter="sql")
    message = decode_to_engine(encode_message(SubmitLeg.of(request, Leg(), 0.0)))
    assert isinstance(message, SubmitLeg)
    assert message.request == request


@pytest.mark.parametrize(
    ("name", "adapter", "told"),
    [
        ({}, None, "m"),
        ({"model": None}, None, "m"),
        ({"model": "m"}, None, "m"),
        ({"model": "nick"}, None, "nick"),
        ({"model": "law"}, "law", "law"),
    ],
)
async def test_a_nodes_call_says_it_as_the_model(
    name: dict[str, str], adapter: str | None, told: str
) -> None:
    engine = Engine()
    answer = await client_of(engine).post("/inference/v1/generate", json=CALL | name)
    assert (await answer.get_json())["model"] == told
    assert [one.adapter for one in engine.asked] == [adapter]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_nodes_call_for_another_name_is_404_as_in_vllm(stream: bool) -> None:
    engine = Engine()
    body = CALL | {"model": "x", "stream": stream}
    answer = await client_of(engine).post("/inference/v1/generate", json=body)
    assert answer.status_code == 404
    assert (await answer.get_json())["error"] == {
        "message": "The model `x` does not exist.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    assert not engine.asked


def test_names_are_the_models_or_an_adapters() -> None:
    assert [SERVED.resolve_name(name) for name in (None, "nick", "sql")] == ["m", "nick", "sql"]
    assert [SERVED.adapter(name) for name in (None, "", "nick", "sql")] == [None] * 3 + ["sql"]
    for wrong in (SERVED.resolve_name, SERVED.adapter):
        with pytest.raises(ModelNotFound, match="The model `law` does not exist"):
            wrong("law")


async def test_every_choice_of_every_prompt_has_it() -> None:
    asked = await complete({"model": "sql", "prompt": ["a", "b"], "n": 2}, door=SERVED)
    assert [call.request.adapter for call in asked.calls] == ["sql"] * 4
    assert (await chat({"model": "sql"}, door=SERVED)).calls[0].request.adapter == "sql"
    for model in ({}, {"model": "m"}):
        assert (await chat(model, door=SERVED)).calls[0].request.adapter is None


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
    ],
)
async def test_every_endpoint_asks_for_it_and_says_so(path: str, fields: Any) -> None:  # noqa: ANN401
    door = saying("the cat")
    answer = await Client(door, SERVED).post(path, model="sql", **fields)
    assert answer.json["model"] == "sql"
    assert [request.adapter for request, _ in door.asked] == ["sql"]
    refused = await Client(door, SERVED).post(path, model="law", **fields)
    assert refused.status == 404
    assert len(door.asked) == 1


async def test_its_texts_are_tokenized_as_the_models() -> None:
    client = Client(saying(""), SERVED)
    said = [await client.post("/tokenize", prompt="the cat", model=n) for n in ("sql", "m")]
    assert said[0].json["tokens"] == said[1].json["tokens"]
    assert (await client.post("/tokenize", prompt="the cat", model="law")).status == 404


def test_each_has_a_card_that_names_its_model() -> None:
    told = [(card.id, card.root, card.parent) for card in list_models(SERVED).data]
    assert told == [("m", "m", None), ("nick", "m", None), ("sql", "sql", "m")]
    assert find_model(SERVED, "sql").max_model_len == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/pooling", {"input": "a"}),
        ("/classify", {"input": "a"}),
        ("/score", {"text_1": "a", "text_2": "b"}),
        ("/rerank", {"query": "a", "documents": ["b"]}),
    ],
)
async def test_vectors_are_the_models_alone(path: str, fields: Any) -> None:  # noqa: ANN401
    client = Client(saying(""), SERVED, embedder=FakeEmbedder())
    said = await client.post(path, model="sql", **fields)
    assert param(said) == "model"
    assert "adapters are for generation only" in said.json["error"]["message"]


def test_a_node_of_vllm_is_never_asked_for_the_model_in_its_place() -> None:
    request = Request(RequestId("r"), (1,), adapter="sql")
    with pytest.raises(UnsupportedByVllm, match="adapter") as refused:
        completion_body(request, "m", None, hold=False)
    assert refused.value.param == "model"
    with pytest.raises(UnsupportedByVllm):
        generate_body(request, "r", None, hold=True)

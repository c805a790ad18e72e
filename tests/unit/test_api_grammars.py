"""The many ways to say what an answer must look like, and the one thing they become."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from api.errors import BadRequest
from api.generate import NodeCall, decode_call, encode_call
from api.served import ServedModel
from engine.request import Grammar, Request, RequestId, Sampling
from tests.fakes.asking import chat, complete
from tests.fakes.text import byte_level

RID = RequestId("r")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = msgspec.json.encode(SCHEMA).decode()
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}],
    "triggers": ["<a"],
}
LARK = 'start: "a"'


@pytest.fixture
async def door() -> AsyncGenerator[ServedModel]:
    served = ServedModel(("tiny",), byte_level(), lambda: 200)
    yield served
    served.grammars.close()


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            Grammar("json_schema", TEXT),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, Grammar("json_schema", TEXT)),
        ({"structured_outputs": {"json": TEXT}}, Grammar("json_schema", TEXT)),
        ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
        ({"structured_outputs": {"regex": "a+"}}, Grammar("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar("choice", '["a","b"]')),
        ({"structured_outputs": {"grammar": LARK}}, Grammar("ebnf", LARK)),
        ({"guided_json": SCHEMA}, Grammar("json_schema", TEXT)),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_choice": ["a", "b"]}, Grammar("choice", '["a","b"]')),
        ({"guided_grammar": LARK}, Grammar("ebnf", LARK)),
    ],
)
async def test_every_way_has_one_meaning(
    door: ServedModel, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    for ask in (complete, chat):
        assert (await ask(fields, door=door)).calls[0].request.sampling.grammar == grammar


@pytest.mark.parametrize("field", ["response_format", "structural_tag", "structured_outputs"])
async def test_a_structural_tag_is_kept_as_it_is(door: ServedModel, field: str) -> None:
    said: Any = {"structural_tag": json.dumps(TAG)} if field == "structured_outputs" else TAG
    grammar = (await complete({field: said}, door=door)).calls[0].request.sampling.grammar
    assert grammar
    assert grammar.kind == "structural_tag"
    assert json.loads(grammar.source) == TAG


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_grammar": "what?"}, "guided_grammar"),
        ({"response_format": {"type": "text"}, "guided_regex": "(a"}, "guided_regex"),
        ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format",
        ),
    ],
)
async def test_what_makes_no_sense_is_refused_at_the_door(
    door: ServedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await complete(fields, door=door)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("json_object"),
        Grammar("json_schema", TEXT),
        Grammar("regex", "a+"),
        Grammar("ebnf", LARK),
        Grammar("choice", '["a","b"]'),
        Grammar("structural_tag", json.dumps(TAG)),
    ],
)
def test_nodes_of_any_make_are_told_in_vllms_words(grammar: Grammar) -> None:
    call = NodeCall(Request(RID, (1,), Sampling(seed=1, grammar=grammar)))
    assert decode_call(encode_call(call), request_id=RID) == call
    said = msgspec.json.decode(encode_call(call))["sampling_params"]["structured_outputs"]
    assert len(said) == 1

"""Answers over HTTP: OpenAI's own types read them, and vLLM's additions are where they were."""

import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.generator import Event, Leg, PromptEvent, StageEvent, TicketEvent, TokenEvent
from api.served import read_leg_params
from engine.request import FinishReason, Request
from kv_transfer.ticket import KvTicket, to_params
from tests.fakes.http import NOW, Client, Json
from tests.fakes.text import EOS, FakeDoor, byte_level, saying, says, served

TEXT = "the cat sat. grüße 🚀"
CODEC = byte_level()
TOKENS = [*CODEC.encode(TEXT), EOS]
PROMPT = [*CODEC.encode("the")]
CHAT_PROMPT = [*CODEC.encode("<|user|>hi<|assistant|>")]
HOLD = {"do_remote_decode": True, "do_remote_prefill": False}
TICKET = KvTicket("t", "e", "h", 1, "f")
USAGE = {
    "prompt_tokens": len(PROMPT),
    "completion_tokens": len(TOKENS),
    "total_tokens": len(PROMPT) + len(TOKENS),
    "prompt_tokens_details": {"cached_tokens": 0},
}


async def test_a_completion() -> None:
    said = await Client(saying(TEXT)).complete()
    assert said.status == 200
    assert said.headers["content-type"] == "application/json"
    answer = Completion.model_validate(said.json)
    assert (answer.model, answer.created, answer.object) == ("tiny", NOW, "text_completion")
    assert answer.id == "cmpl-" + said.headers["x-request-id"]
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert said.json["choices"][0]["stop_reason"] is None
    assert said.json["usage"] == USAGE
    assert {"kv_transfer_params", "pdserve", "prompt_token_ids"}.isdisjoint(said.json)


async def test_a_chat() -> None:
    said = await Client(saying(TEXT)).chat(model="alias")
    answer = ChatCompletion.model_validate(said.json)
    assert (answer.model, answer.created, answer.object) == ("alias", NOW, "chat.completion")
    assert answer.id == "chatcmpl-" + said.headers["x-request-id"]
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert said.json["choices"][0]["message"]["reasoning"] is None
    assert said.json["usage"]["prompt_tokens"] == len(CHAT_PROMPT)


async def test_a_streamed_completion() -> None:
    said = await Client(saying(TEXT)).complete(stream=True)
    assert said.headers["content-type"].startswith("text/event-stream")
    assert said.headers["cache-control"] == "no-cache"
    assert said.headers["x-accel-buffering"] == "no"
    assert said.text == TEXT
    *parts, last = said.events
    assert all(part["choices"][0]["finish_reason"] is None for part in parts)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert {part["id"] for part in said.events} == {"cmpl-" + said.headers["x-request-id"]}
    assert all(len(part["choices"]) == 1 for part in said.events)
    assert all("usage" not in part for part in said.events)
    Completion.model_validate(last)


async def test_a_streamed_chat() -> None:
    said = await Client(saying(TEXT)).chat(stream=True)
    chunks = [ChatCompletionChunk.model_validate(event) for event in said.events]
    first, *parts, last = (chunk.choices[0] for chunk in chunks)
    assert (first.delta.role, first.delta.content) == ("assistant", "")
    assert "".join(part.delta.content or "" for part in parts) == TEXT
    assert all(part.finish_reason is None and part.delta.role is None for part in parts)
    assert (last.finish_reason, last.delta.content) == ("stop", None)
    assert said.events[-1]["choices"][0]["delta"] == {}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


async def test_every_choice_of_a_streamed_chat_begins_with_its_role() -> None:
    said = await Client(saying(TEXT)).chat(stream=True, n=2)
    roles = [event["choices"][0]["delta"].get("role") for event in said.events]
    assert roles[:2] == ["assistant"] * 2
    assert not any(roles[2:])
    for index in range(2):
        mine = [c for event in said.events for c in event["choices"] if c["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in mine) == TEXT
        assert [choice["finish_reason"] for choice in mine][-1] == "stop"


async def test_choices_of_many_prompts_are_in_order() -> None:
    def echo(request: Request, _: Leg) -> list[Event]:
        return says([*request.prompt, EOS])

    said = await Client(FakeDoor(echo)).complete(prompt=["the", "cat"], n=2)
    choices = said.json["choices"]
    assert [choice["text"] for choice in choices] == ["the", "the", "cat", "cat"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    prompts = sum(len(CODEC.encode(prompt)) for prompt in ("the", "cat"))
    assert said.json["usage"]["prompt_tokens"] == prompts


async def test_cached_tokens_are_those_of_all_prompts_once() -> None:
    def cached(request: Request, _: Leg) -> list[Event]:
        return says([EOS], cached=len(request.prompt) + 10 * request.sampling.sample_index)

    prompt = [[1] * 3, [2] * 5]
    said = await Client(FakeDoor(cached)).complete(prompt=prompt, n=3)
    assert said.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


@pytest.mark.parametrize("surface", ["complete", "chat"])
async def test_usage_comes_last_if_asked_for(surface: str) -> None:
    options = {"include_usage": True}
    ask = getattr(Client(saying(TEXT)), surface)
    said, whole = await ask(stream=True, stream_options=options), await ask()
    *parts, last = said.events
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == []
    assert last["usage"] == whole.json["usage"]


@pytest.mark.parametrize("surface", ["complete", "chat"])
async def test_usage_grows_with_every_chunk_if_asked_for(surface: str) -> None:
    options = {"continuous_usage_stats": True}
    said = await getattr(Client(saying(TEXT)), surface)(stream=True, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in said.events]
    assert counts == sorted(counts)
    assert counts[-1] == len(TOKENS)


async def test_each_of_several_choices_counts_what_it_has_said() -> None:
    """However far a choice is while its chunks wait to be written."""
    options = {"continuous_usage_stats": True}
    said = await Client(saying(TEXT)).complete(
        stream=True, n=3, return_token_ids=True, stream_options=options
    )
    chunks: list[list[tuple[int, Json]]] = [[] for _ in range(3)]
    for event in said.events:
        (choice,) = event["choices"]
        chunks[choice["index"]].append((event["usage"]["completion_tokens"], choice))
    for parts in chunks:
        assert [count for count, _ in parts] == [*range(1, len(TOKENS) + 1)]
        assert ["prompt_token_ids" in choice for _, choice in parts].index(False) == 1
        assert [token for _, choice in parts for token in choice["token_ids"]] == TOKENS


async def test_token_ids_stand_with_the_choices_of_a_completion() -> None:
    client = Client(saying(TEXT))
    answer = (await client.complete(return_token_ids=True)).json
    assert "prompt_token_ids" not in answer
    (whole,) = answer["choices"]
    assert (whole["prompt_token_ids"], whole["token_ids"]) == (PROMPT, TOKENS)
    said = await client.complete(return_token_ids=True, stream=True, stop=TEXT[:9] + "#")
    first, *rest = (event["choices"][0] for event in said.events)
    assert first["prompt_token_ids"] == PROMPT
    assert not any("prompt_token_ids" in choice for choice in rest)
    assert [token for choice in (first, *rest) for token in choice["token_ids"]] == TOKENS


async def test_token_ids_of_a_chats_prompt_stand_on_top() -> None:
    client = Client(saying(TEXT))
    whole = (await client.chat(return_token_ids=True)).json
    assert whole["prompt_token_ids"] == CHAT_PROMPT
    assert whole["choices"][0]["token_ids"] == TOKENS
    assert "prompt_token_ids" not in whole["choices"][0]
    first, *rest = (await client.chat(return_token_ids=True, stream=True)).events
    assert first["prompt_token_ids"] == CHAT_PROMPT
    assert not any("prompt_token_ids" in event for event in rest)
    said = [token for event in rest for token in event["choices"][0]["token_ids"]]
    assert said == TOKENS


async def test_a_stop_string_is_the_reason() -> None:
    said = await Client(saying(TEXT)).complete(stop=["sat"])
    choice = said.json["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("the cat ", "stop")
    assert choice["stop_reason"] == "sat"
    events = (await Client(saying(TEXT)).chat(stop=["sat"], stream=True)).events
    assert events[-1]["choices"][0]["stop_reason"] == "sat"


@pytest.mark.parametrize("surface", ["complete", "chat"])
async def test_stages_are_told_if_asked_for(surface: str) -> None:
    stage = {"stage": "transfer", "seconds": 0.5, "num_bytes": 4096}
    events = [*says(TOKENS), StageEvent("transfer", 0.5, 4096)]
    ask = getattr(Client(FakeDoor(lambda request, leg: events)), surface)
    timings = {"timings": True}
    assert (await ask(pdserve=timings)).json["pdserve"] == {"stages": [stage]}
    last = (await ask(pdserve=timings, stream=True)).events[-1]
    assert (last["choices"], last["pdserve"]) == ([], {"stages": [stage]})
    assert "usage" not in last
    assert "pdserve" not in (await ask()).json
    assert (await ask(stream=True)).events[-1]["choices"]


@pytest.mark.parametrize("surface", ["complete", "chat"])
@pytest.mark.parametrize("finish", [None, FinishReason.LENGTH])
async def test_a_prefill_leg_answers_with_its_ticket(
    surface: str, finish: FinishReason | None
) -> None:
    events: list[Event] = [
        TicketEvent(TICKET),
        PromptEvent(0),
        TokenEvent((PROMPT[0],), finish),
    ]
    client = Client(FakeDoor(lambda request, leg: events), served(), read_leg_params)
    ask = getattr(client, surface)
    fields = {"kv_transfer_params": HOLD, "max_tokens": 1}
    whole = (await ask(**fields)).json
    assert whole["kv_transfer_params"] == to_params(TICKET)
    assert whole["choices"][0]["finish_reason"] == "length"
    *rest, last = (await ask(**fields, stream=True)).events
    assert last["kv_transfer_params"] == to_params(TICKET)
    assert last["choices"][0]["finish_reason"] == "length"
    assert not any("kv_transfer_params" in event for event in rest)


async def test_a_decode_leg_is_asked_with_the_ticket() -> None:
    door = saying(TEXT)
    await Client(door, served(), read_leg_params).complete(kv_transfer_params=to_params(TICKET))
    ticket = door.asked[0][1].ticket
    assert ticket is not None
    assert to_params(ticket) == to_params(TICKET)


async def test_models_are_listed_by_all_their_names() -> None:
    client = Client(saying(TEXT))
    cards = (await client.ask("GET", "/v1/models")).json
    assert cards["object"] == "list"
    assert [Model.model_validate(card).id for card in cards["data"]] == ["tiny", "alias"]
    card = (await client.ask("GET", "/v1/models/alias")).json
    expected = {"owned_by": "pdserve", "root": "tiny", "parent": None, "max_model_len": 200}
    assert card == {"id": "alias", "object": "model", "created": 7, **expected}

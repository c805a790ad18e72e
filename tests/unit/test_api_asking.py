"""What a completion's body means: the Requests it becomes."""

from dataclasses import replace

import msgspec
import pytest

from api.bodies import read_completion
from api.encoding import LengthLimit, encode_text
from api.errors import BadRequest, ContextTooLong
from api.generator import WHOLE, Leg
from api.seeds import default_seed
from api.served import ServedModel, read_leg_params
from api.text.tokenizing import FEW, LONG
from engine.request import Sampling
from kv_transfer.ticket import KvTicket, to_params
from tests.fakes.asking import Fields, chat, complete, texts
from tests.fakes.text import byte_level, served

CODEC = byte_level()
FAR_TOO_LONG = "the cat " * (LONG // 8 + 1)
HOLD = {"do_remote_decode": True, "do_remote_prefill": False}
TICKET = KvTicket("t", "e", "h", 1, "f")


async def test_a_bare_completion_has_openais_defaults() -> None:
    asked = await complete()
    request = asked.calls[0].request
    assert asked.model == "tiny"
    assert request.request_id == "outer"
    assert request.prompt == CODEC.encode("the cat")
    assert request.sampling == Sampling(16, seed=default_seed("outer"))


async def test_null_is_the_same_as_absent() -> None:
    fields = msgspec.structs.fields(type(read_completion(b"{}")))
    nothing = {field.name: None for field in fields if field.name != "prompt"}
    assert (await complete(nothing)).calls == (await complete()).calls


async def test_every_sampling_field_arrives() -> None:
    asked = await complete(
        {
            **{"max_tokens": 9, "min_tokens": 2, "temperature": 0, "top_p": 0.5, "top_k": 7},
            **{"min_p": 0.25, "seed": 5, "stop_token_ids": [3, 4], "ignore_eos": True},
            "cache_salt": "s",
        }
    )
    request = asked.calls[0].request
    assert request.sampling == Sampling(9, 2, 0.0, 0.5, 7, 0.25, 5, 0, (3, 4), ignore_eos=True)
    assert request.cache_salt == "s"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("the", ["the"]),
        (["the", "cat"], ["the", "cat"]),
        ([*CODEC.encode("sat")], ["sat"]),
        ([[*CODEC.encode("sat")], [*CODEC.encode("on")]], ["sat", "on"]),
    ],
)
async def test_prompts_come_in_four_forms(prompt: object, said: list[str]) -> None:
    assert texts(await complete({"prompt": prompt})) == said


async def test_choices_are_numbered_by_prompt_and_then_by_sample() -> None:
    asked = await complete({"prompt": ["the", "cat"], "n": 3, "seed": 1})
    requests = [call.request for call in asked.calls]
    assert texts(asked) == ["the"] * 3 + ["cat"] * 3
    assert [request.request_id for request in requests] == [f"outer-{i}" for i in range(6)]
    assert [request.sampling.sample_index for request in requests] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("text", ["the cat", "the cat sat on the mat " * 200])
async def test_short_and_long_texts_are_encoded_alike(text: str) -> None:
    asked = await complete({"prompt": text}, context=None)
    assert asked.calls[0].request.prompt == CODEC.encode(text)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(0, 0), (7, 7), (-2, 2**64 - 2), (2**64 - 1, 2**64 - 1), (-1, default_seed("outer"))],
)
async def test_a_seed_has_64_bits_with_a_sign_or_without(seed: int, expected: int) -> None:
    assert (await complete({"seed": seed})).calls[0].request.sampling.seed == expected


@pytest.mark.parametrize(
    ("fields", "context", "expected"),
    [
        ({}, 200, 16),
        ({}, 10, 8),
        ({}, None, 16),
        ({"max_tokens": 198}, 200, 198),
        ({"max_tokens": 1, "max_completion_tokens": 1}, 200, 1),
        ({"max_completion_tokens": 3}, 200, 3),
        ({"max_tokens": 10**6}, None, 10**6),
    ],
)
async def test_a_completion_is_as_long_as_asked(
    fields: Fields, context: int | None, expected: int
) -> None:
    asked = await complete(fields, context=context)
    assert asked.calls[0].request.sampling.max_tokens == expected


async def test_the_last_place_of_the_context_can_be_used() -> None:
    assert (await complete({"prompt": [1] * 199, "max_tokens": 1})).calls


async def test_a_user_is_a_session() -> None:
    for fields, session in (({}, "me"), ({"session_id": "talk"}, "talk")):
        (call,) = (await complete({"user": "me", **fields})).calls
        assert call.request.session == session


async def test_fields_that_mean_nothing_here_are_ignored() -> None:
    harmless = {"user": 5, "metadata": {"a": 1}, "store": True, "service_tier": "auto"}
    neutral = {"echo": False, "logprobs": None, "presence_penalty": 0, "best_of": 1}
    foreign = {"no_stop_trim": False, "bootstrap_host": "h", "separate_reasoning": True}
    assert (await complete({**harmless, **neutral, **foreign})).calls == (
        await complete()
    ).calls
    told = {**harmless, "service_tier": "flex", "verbosity": "medium", "echo": False}
    assert (await chat(told)).calls == (await chat()).calls


async def test_the_best_of_as_many_as_are_told_are_all_of_them() -> None:
    two = {"n": 2, "prompt": ["the", "cat"]}
    assert (await complete({**two, "best_of": 2})).calls == (await complete(two)).calls


@pytest.mark.parametrize("name", [None, "", "tiny", "alias"])
async def test_all_names_are_accepted(name: str | None) -> None:
    assert (await complete({"model": name})).model == (name or "tiny")


async def test_a_vocabulary_larger_than_the_tokenizers_is_the_models() -> None:
    door = ServedModel(("tiny",), CODEC, lambda: 10, vocab_size=6000)
    assert (await complete({"prompt": [5000], "max_tokens": 1}, door=door)).calls


async def test_a_prefill_leg_keeps_a_min_tokens_that_its_driver_forgot() -> None:
    asked = await complete(
        {"kv_transfer_params": HOLD, "max_tokens": 1, "min_tokens": 5}, legs=read_leg_params
    )
    assert asked.calls[0].leg == Leg(hold=True)
    assert asked.calls[0].request.sampling == Sampling(1, 5, seed=default_seed("outer"))


async def test_a_text_leg_is_never_kept_open() -> None:
    params = {**HOLD, "pdserve": {"keep_open": True}}
    asked = await complete({"kv_transfer_params": params}, legs=read_leg_params)
    assert asked.calls[0].leg == Leg(hold=True)


@pytest.mark.parametrize("fields", [{"n": 2}, {"prompt": ["a", "b"]}])
async def test_of_several_choices_the_first_is_the_leg_and_the_others_are_whole(
    fields: Fields,
) -> None:
    """vLLM's router and others send each leg with all choices; one ticket comes back."""
    for params in (HOLD, to_params(TICKET)):
        asked = await complete({"kv_transfer_params": params, **fields}, legs=read_leg_params)
        first, second = (call.leg for call in asked.calls)
        assert first.hold or first.ticket is not None
        assert second == WHOLE


@pytest.mark.parametrize("fields", [{"prompt_logprobs": 1}, {"echo": True, "logprobs": 1}])
async def test_who_wants_log_probabilities_of_the_prompt_has_it_run_where_it_answers(
    fields: Fields,
) -> None:
    """KV that is fetched tells nothing of them, and nothing is held that nobody fetches."""
    for params in (HOLD, to_params(TICKET)):
        asked = await complete({"kv_transfer_params": params, **fields}, legs=read_leg_params)
        [leg] = [call.leg for call in asked.calls]
        assert (leg.hold, leg.recompute) == (False, params is not HOLD)
        assert (leg.ticket is not None) is leg.recompute, "its KV is given up"


async def test_the_context_is_asked_once_however_many_choices_there_are() -> None:
    asked = list[None]()

    def context() -> int:
        asked.append(None)
        return 200

    door = replace(served(), max_model_len=context)
    for cat in ("cat", "cat " * 600):
        fields = {"prompt": ["the", cat], "n": 5, "truncate_prompt_tokens": 9}
        assert len((await complete(fields, door=door)).calls) == 10
        assert len(asked) == 1
        asked.clear()


async def test_a_text_that_cannot_fit_is_refused_before_it_takes_memory() -> None:
    long = FAR_TOO_LONG
    with pytest.raises(ContextTooLong, match="more than twice as many"):
        await complete({"prompt": long})
    with pytest.raises(ContextTooLong, match=r"^The text has more than twice 5 tokens"):
        encode_text(CODEC, long, LengthLimit(max_tokens=5))
    asked = await complete({"prompt": long, "truncate_prompt_tokens": 5})
    assert asked.calls[0].request.prompt == CODEC.encode(long)[-5:]
    assert not CODEC.far_exceeds(long, len(CODEC.encode(long)) // 2), "cuts are no tokens"
    assert CODEC.far_exceeds(long, len(CODEC.encode(long)) // 2 - FEW)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": ["the cat " * 150, FAR_TOO_LONG]}, "the prompt alone has 301"),
        ({"prompt": ["the cat " * 95, FAR_TOO_LONG], "max_tokens": 30}, "were requested"),
        ({"prompt": ["", FAR_TOO_LONG]}, "prompt must not be empty"),
        ({"prompt": [FAR_TOO_LONG] * 17, "n": 128}, "more than 2048 choices"),
        ({"prompt": FAR_TOO_LONG, "bad_words": [""]}, "bad_words"),
    ],
)
async def test_no_prompt_is_tokenized_behind_what_is_refused(
    fields: Fields, words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        await complete(fields)

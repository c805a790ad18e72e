"""What a text body's sampling fields become, and what stands in for those that are absent."""

import json
from pathlib import Path

import pytest

from api.defaults import OPENAI, Defaults, load_defaults
from api.errors import BadRequest
from api.served import ServedModel
from engine.request import Sampling
from tests.fakes.asking import Fields, chat, complete
from tests.fakes.text import byte_level, metaspace, served

CODEC = byte_level()
FILE = "generation_config.json"


async def sampling_of(fields: Fields, door: ServedModel | None = None) -> Sampling:
    return (await complete(fields, door=door)).calls[0].request.sampling


async def test_penalties_biases_and_masks_arrive() -> None:
    said = await sampling_of(
        {
            **{"presence_penalty": 0.5, "frequency_penalty": -2, "repetition_penalty": 1.25},
            **{"logit_bias": {"5": 1, "7": -100}, "allowed_token_ids": [5, 7]},
        }
    )
    assert (said.presence_penalty, said.frequency_penalty) == (0.5, -2.0)
    assert said.repetition_penalty == 1.25
    assert said.logit_bias == ((5, 1.0), (7, -100.0))
    assert said.allowed_token_ids == (5, 7)


async def test_a_bad_word_is_forbidden_behind_a_space_too() -> None:
    said = await sampling_of({"bad_words": ["cat"]})
    assert said.bad_words == tuple(
        CODEC.encode(word, special_tokens=False) for word in ("cat", " cat")
    )


async def test_a_spelling_that_only_adds_a_space_is_forbidden_once() -> None:
    codec = metaspace()
    bare = codec.encode("dog", special_tokens=False)
    assert codec.encode(" dog", special_tokens=False)[-len(bare) :] == bare
    door = served(codec)
    assert (await sampling_of({"prompt": [1], "bad_words": ["dog"]}, door)).bad_words == (bare,)


@pytest.mark.parametrize(
    ("fields", "ranks", "prompt"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 5}, 5, None),
        ({"prompt_logprobs": 3}, None, 3),
        ({"logprobs": 5, "echo": True}, 5, 5),
        ({"logprobs": 5, "echo": True, "prompt_logprobs": 2}, 5, 2),
        ({"echo": True}, None, None),
    ],
)
async def test_an_echo_tells_of_the_prompt_what_is_told_of_the_answer(
    fields: Fields, ranks: int | None, prompt: int | None
) -> None:
    said = await sampling_of(fields)
    assert (said.logprobs, said.prompt_logprobs) == (ranks, prompt)


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
    ],
)
async def test_a_chat_has_a_switch_and_a_number(fields: Fields, ranks: int | None) -> None:
    assert (await chat(fields)).calls[0].request.sampling.logprobs == ranks


async def test_whoever_runs_the_door_says_how_many_may_be_asked_for() -> None:
    door = ServedModel(("tiny",), CODEC, lambda: 200, max_logprobs=-1)
    for asked in (-1, 100):
        assert (await sampling_of({"logprobs": asked}, door)).logprobs == asked


async def test_a_prompt_is_told_of_once_however_many_choices_it_has() -> None:
    asked = await complete({"prompt": ["the", "cat"], "n": 2, "prompt_logprobs": 1})
    ranks = [call.request.sampling.prompt_logprobs for call in asked.calls]
    assert ranks == [1, None, 1, None]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, [7, 8, 9]),
        ({"truncate_prompt_tokens": 99}, [*range(10)]),
        ({"truncate_prompt_tokens": -1}, [*range(10)]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 195}, [5, 6, 7, 8, 9]),
        ({"truncate_prompt_tokens": -1, "max_tokens": 200}, None),
        ({"truncation_side": "right"}, [*range(10)]),
        ({"truncation_side": "right", "truncate_prompt_tokens": 3}, [0, 1, 2]),
        ({"truncation_side": "left", "truncate_prompt_tokens": 3}, [7, 8, 9]),
    ],
)
async def test_a_prompt_keeps_one_end(fields: Fields, kept: list[int] | None) -> None:
    if kept is None:
        with pytest.raises(Exception, match="maximum context length"):
            await complete({"prompt": [*range(10)], **fields})
        return
    asked = await complete({"prompt": [*range(10)], **fields})
    assert [*asked.calls[0].request.prompt] == kept


async def test_a_priority_goes_with_every_request() -> None:
    asked = await complete({"n": 2, "priority": -5})
    assert [call.request.priority for call in asked.calls] == [-5, -5]


async def test_an_echo_alone_is_one_token_that_is_not_said() -> None:
    asked = await complete({"echo": True, "max_tokens": 0, "min_tokens": 3})
    assert asked.calls[0].request.sampling.max_tokens == 1
    assert asked.body.only_echo
    with pytest.raises(Exception, match="without echo"):
        await complete({"max_tokens": 0})


async def test_the_models_own_defaults_hold_where_a_client_says_nothing() -> None:
    own = Defaults(0.5, 0.9, 20, 0.05, 1.1, 7)
    door = ServedModel(("tiny",), CODEC, lambda: 200, defaults=own)
    for ask in (complete, chat):
        said = (await ask(door=door)).calls[0].request.sampling
        assert (said.temperature, said.top_p, said.top_k) == (0.5, 0.9, 20)
        assert (said.min_p, said.repetition_penalty, said.max_tokens) == (0.05, 1.1, 7)
        given = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
        said = (await ask({**given, "max_tokens": 3}, door=door)).calls[0].request.sampling
        assert (said.temperature, said.top_p, said.top_k) == (0, 1, 0)
        assert (said.min_p, said.repetition_penalty, said.max_tokens) == (0, 1, 3)


def write(folder: Path, config: object) -> str:
    (folder / FILE).write_text(json.dumps(config))
    return str(folder)


def test_a_checkpoints_file_is_read(tmp_path: Path) -> None:
    said = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 9, "eos_token_id": [1, 2]}
    model = write(tmp_path, {**said, "top_p": None, "do_sample": True})
    assert load_defaults("auto", model) == Defaults(0.6, top_k=20, max_new_tokens=9)
    assert load_defaults("vllm", model) == OPENAI
    assert load_defaults(model, None) == load_defaults(model, "elsewhere")
    assert load_defaults("auto", None) == OPENAI


@pytest.mark.parametrize(
    "said", [{"top_p": 0, "top_k": -1}, {"top_p": None, "top_k": None, "temperature": None}]
)
def test_what_a_checkpoint_leaves_open_in_its_own_way_is_left_open(
    tmp_path: Path, said: dict[str, object]
) -> None:
    (tmp_path / FILE).write_text(json.dumps(said))
    assert load_defaults("auto", str(tmp_path)) == OPENAI


def test_a_checkpoint_need_not_have_one_but_a_folder_that_is_named_does(tmp_path: Path) -> None:
    assert load_defaults("auto", str(tmp_path)) == OPENAI
    with pytest.raises(OSError, match=FILE):
        load_defaults(str(tmp_path), None)


@pytest.mark.parametrize("config", [{"temperature": -1}, {"top_p": "much"}, [], {"top_k": 0.5}])
def test_what_cannot_be_meant_names_its_file(tmp_path: Path, config: object) -> None:
    with pytest.raises(OSError, match=FILE):
        load_defaults("auto", write(tmp_path, config))


def test_the_bundled_model_says_what_it_was_taught() -> None:
    bundled = Path(__file__).parents[2] / "deploy" / "demo" / "model"
    assert load_defaults("auto", str(bundled)) == Defaults(temperature=0.0)


async def test_bad_words_have_so_many_characters() -> None:
    assert (await sampling_of({"bad_words": ["a" * 8_192] * 2})).bad_words
    with pytest.raises(BadRequest, match="16384") as refused:
        await sampling_of({"bad_words": ["a" * 8_192] * 2 + ["b"]})
    assert refused.value.param == "bad_words"


async def test_no_more_tokens_are_biased_than_there_are() -> None:
    too_many = {str(token): 1 for token in range(byte_level().num_token_ids + 1)}
    with pytest.raises(BadRequest, match="more than") as refused:
        await sampling_of({"logit_bias": too_many})
    assert refused.value.param == "logit_bias"

"""The digest that goes with KV names all that shapes the next token, and nothing else."""

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from engine.request import (
    Grammar,
    ReasoningMarks,
    Request,
    RequestId,
    Sampling,
    first_token_digest,
)

BASE = Sampling(temperature=0.5, min_tokens=3)


@dataclass(frozen=True)
class Change:
    """Another value, and whether it may change the next token."""

    value: Any
    shapes: bool = True


CHANGES = {
    "max_tokens": Change(1, shapes=False),
    "min_tokens": Change(4),
    "temperature": Change(0.6),
    "top_p": Change(0.5),
    "top_k": Change(3),
    "min_p": Change(0.1),
    "seed": Change(5),
    "sample_index": Change(1),
    "stop_token_ids": Change((3,)),
    "ignore_eos": Change(True),
    "presence_penalty": Change(0.5),
    "frequency_penalty": Change(0.5),
    "repetition_penalty": Change(1.5),
    "logit_bias": Change(((3, 1.0),)),
    "allowed_token_ids": Change((3, 4)),
    "bad_words": Change(((3,),)),
    "logprobs": Change(3, shapes=False),
    "prompt_logprobs": Change(3, shapes=False),
    "grammar": Change(Grammar("regex", "a")),
    "grammar_behind": Change(ReasoningMarks(((3,),)), shapes=False),
}


def digest(sampling: Sampling, generated: tuple[int, ...] = ()) -> bytes:
    return first_token_digest(Request(RequestId("r"), (1, 2), sampling, generated))


def test_no_field_is_forgotten() -> None:
    assert CHANGES.keys() == set(Sampling.__struct_fields__)


@pytest.mark.parametrize("name", CHANGES)
def test_it_names_what_shapes_the_next_token(name: str) -> None:
    change = CHANGES[name]
    changed = replace(BASE, **{name: change.value})
    assert (digest(changed) != digest(BASE)) == change.shapes


def test_fields_are_not_mistaken_for_one_another() -> None:
    digests = {digest(replace(BASE, **{name: one.value})) for name, one in CHANGES.items()}
    assert len(digests) == sum(one.shapes for one in CHANGES.values()) + 1


@pytest.mark.parametrize("name", ["seed", "sample_index", "top_p", "top_k", "min_p"])
def test_without_temperature_there_is_no_noise(name: str) -> None:
    cold = replace(BASE, temperature=0.0)
    assert digest(replace(cold, **{name: CHANGES[name].value})) == digest(cold)


@pytest.mark.parametrize("name", ["min_tokens", "stop_token_ids", "ignore_eos"])
def test_ends_shape_nothing_once_they_may_come(name: str) -> None:
    past = (7,) * 4
    changed = replace(BASE, **{name: CHANGES[name].value})
    assert digest(changed, past) == digest(BASE, past)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"logit_bias": ((3, 1.0), (4, 2.0))}, {"logit_bias": ((4, 2.0), (3, 1.0))}),
        ({"allowed_token_ids": (3, 4)}, {"allowed_token_ids": (4, 3, 3)}),
        ({"bad_words": ((3, 4), (5,))}, {"bad_words": ((5,), (3, 4))}),
    ],
)
def test_order_does_not_count(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert digest(replace(BASE, **one)) == digest(replace(BASE, **other))
    assert digest(replace(BASE, **one)) != digest(BASE)

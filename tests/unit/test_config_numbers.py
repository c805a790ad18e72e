"""A number of config.json that is something else is named where the config is refused."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from engine.errors import UnsupportedArchitecture, UnusableCheckpoint
from engine.models.config import parse_config
from tests.fakes.published_mixtures import PUBLISHED

LLAMA = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WRONG: dict[type[UnusableCheckpoint], str] = {
    UnusableCheckpoint: "{} has to be a number, and is ",
    UnsupportedArchitecture: "config.json: {} ",
}


def numbers(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """All but those of the quantization, which engine/checkpoints/packing.py reads."""
    for key, value in list(config.items()):
        if isinstance(value, dict) and key != "quantization_config":
            yield from numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield config, key


def refusal_of(config: dict[str, Any]) -> UnusableCheckpoint | None:
    try:
        parse_config(config)
    except UnusableCheckpoint as refusal:
        return refusal
    return None  # what is never read may be anything


@pytest.mark.parametrize("kind", [str, lambda said: [said], lambda _: {}])
@pytest.mark.parametrize("model", PUBLISHED)
def test_of_what_was_published_each_number_that_is_none_is_named(
    model: str, kind: Callable[[float], object]
) -> None:
    config, named = deepcopy(PUBLISHED[model]), set[str]()
    assert refusal_of(config) is None
    for part, key in numbers(config):
        said = part[key]
        part[key] = kind(said)
        if refusal := refusal_of(config):
            assert WRONG[type(refusal)].format(key) in str(refusal)
            named.add(key)
        part[key] = said
    assert "hidden_size" in named


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "64"}, 'hidden_size has to be a number, and is "64"'),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": "4"}},
            'rope_scaling.factor has to be a number, and is "4"',
        ),
        (
            {"hidden_size": ["6" * 50]},
            f'hidden_size has to be a number, and is ["{"6" * 38}…',
        ),
        ({"max_position_embeddings": "2048"}, "max_position_embeddings has to be a number"),
        ({"max_position_embeddings": True}, "max_position_embeddings has to be a number"),
        ({"num_attention_heads": True}, "num_attention_heads has to be a number, and is true"),
        ({"max_position_embeddings": 0}, "max_position_embeddings 0: Expected `int` >= 1"),
        ({"num_key_value_heads": -4}, "num_key_value_heads -4: Expected `int` >= 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers -1 has to be at least 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0 has to be at least 1"),
        ({"head_dim": 7}, "head_dim 7: Expected `int` that's a multiple of 2"),
        ({"hidden_act": 7, "head_dim": None, "sliding_window": "9"}, "hidden_act 7"),
    ],
)
def test_it_is_named_with_what_it_is(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnusableCheckpoint) as refused:
        parse_config(LLAMA | changes)
    assert str(refused.value).startswith(f"config.json: {reason}")


@pytest.mark.parametrize("wrong", [-1, 0])
@pytest.mark.parametrize("model", PUBLISHED)
def test_of_what_was_published_each_number_that_is_too_small_is_named_by_its_key(
    model: str, wrong: int
) -> None:
    config, named = deepcopy(PUBLISHED[model]), set[str]()
    for part, key in numbers(config):
        said, part[key] = part[key], wrong
        if refusal := refusal_of(config):
            assert f"{key} {wrong}" in str(refusal) or key == "partial_rotary_factor"
            assert " - at `$" not in str(refusal)
            named.add(key)
        part[key] = said
    assert "hidden_size" in named

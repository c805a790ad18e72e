"""How tokens are foretold is said in JSON, and refused by the field's name."""

import pytest

from engine.settings import SpeculativeConfig, read_speculative_config
from node.config import NodeConfig


def test_what_vllm_writes_is_understood() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}'
    config = SpeculativeConfig(num_speculative_tokens=5, prompt_lookup_max=3)
    assert read_speculative_config(text) == config
    assert read_speculative_config("{}") == SpeculativeConfig()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "must not be empty"),
        ("ngram", "--speculative-config"),
        ("[]", "--speculative-config"),
        ('{"method": "eagle"}', "method"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"num_speculative_tokens": 65}', "num_speculative_tokens"),
        ('{"prompt_lookup_min": 0}', "prompt_lookup_min"),
        ('{"prompt_lookup_min": 5, "prompt_lookup_max": 4}', "prompt_lookup_min"),
        ('{"model": "draft"}', "model"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    text: str, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        NodeConfig(model="m", speculative_config=text)

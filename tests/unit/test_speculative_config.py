"""How tokens are foretold is said in JSON, and refused by the field's name."""

import pytest

from discovery.registration import Role
from engine.settings import SpeculativeConfig, read_speculative_config
from node.config import NodeConfig
from node.engine_job import engine_process_config

EAGLE = '{"method": "eagle3", "model": "head"}'


def test_what_vllm_writes_is_understood() -> None:
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}'
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=5, prompt_lookup_max=3)
    assert read_speculative_config(text) == config
    assert read_speculative_config("{}") == SpeculativeConfig()


@pytest.mark.parametrize("method", ["", '"method": "draft_model", '])
def test_a_model_is_one_that_drafts(method: str) -> None:
    config = read_speculative_config("{" + method + '"model": "small"}')
    assert (config.model, config.most_tokens) == ("small", 8)
    assert config.method in (None, "draft_model")


def test_a_head_drafts_few_tokens_unless_told() -> None:
    config = read_speculative_config('{"method": "mtp"}')
    assert (config.has_head, config.most_tokens) == (True, 3)
    assert read_speculative_config('{"method": "mtp", "num_speculative_tokens": 5}') == (
        SpeculativeConfig(method="mtp", num_speculative_tokens=5)
    )
    assert not read_speculative_config("{}").has_head


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "must not be empty"),
        ("ngram", "--speculative-config"),
        ("[]", "--speculative-config"),
        ('{"method": "eagle"}', "methods are ngram, draft_model, mtp, eagle3"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"num_speculative_tokens": 65}', "num_speculative_tokens"),
        ('{"prompt_lookup_min": 0}', "prompt_lookup_min"),
        ('{"prompt_lookup_min": 5, "prompt_lookup_max": 4}', "prompt_lookup_min"),
        ('{"model": " "}', "the model is empty"),
        ('{"method": "draft_model"}', "needs a model"),
        ('{"method": "ngram", "model": "draft"}', "ngram has no model"),
        ('{"method": "mtp", "model": "draft"}', "mtp has no model"),
        ('{"method": "eagle3"}', "eagle3 needs a model"),
        ('{"draft": "model"}', "draft"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    text: str, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        NodeConfig(model="m", speculative_config=text)


@pytest.mark.parametrize(
    ("role", "text", "told"),
    [
        (Role.DECODE, '{"model": "small"}', '{"model": "small"}'),
        (Role.PREFILL, '{"model": "small"}', None),
        (Role.PREFILL, "{}", "{}"),
        (Role.PREFILL, '{"method": "mtp"}', '{"method": "mtp"}'),
        (
            Role.PREFILL,
            '{"method": "eagle3", "model": "h"}',
            '{"method": "eagle3", "model": "h"}',
        ),
        (Role.PREFILL, None, None),
    ],
)
def test_a_prefill_node_loads_no_draft_model(
    role: Role, text: str | None, told: str | None
) -> None:
    """It draws one token of each answer. A head's KV of the prompt is made there."""
    config = NodeConfig(model="m", speculative_config=text)
    assert engine_process_config(role, config, "n", "h").engine.speculative_config == told

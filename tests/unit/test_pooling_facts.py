"""What a door learns of pooling from a folder, which nodes of any make may serve."""

import json
from pathlib import Path

import pytest

from api.pooling.model_config import load_pooling
from engine.pooling.config import PoolingConfig


def folder(at: Path, **config: object) -> str:
    (at / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    return str(at)


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({}, PoolingConfig()),
        ({"architectures": ["Qwen3ForCausalLM"]}, PoolingConfig()),
        ({"architectures": ["Qwen3Model"]}, PoolingConfig(generates=False)),
        ({"model_type": "bert"}, PoolingConfig(kind="cls", generates=False)),
        ({"is_matryoshka": True}, PoolingConfig(dimensions=())),
        ({"matryoshka_dimensions": [8, 16]}, PoolingConfig(dimensions=(8, 16))),
        (
            {
                "architectures": ["Qwen3ForSequenceClassification"],
                "id2label": {"1": "bad", "0": "good", "10": "worst", "2": "worse"},
            },
            PoolingConfig(
                labels=("good", "bad", "worse", "worst"),
                generates=False,
                tasks=("classify", "token_classify"),
            ),
        ),
        (
            {
                "architectures": ["BertForSequenceClassification"],
                "model_type": "bert",
                "problem_type": "multi_label_classification",
            },
            PoolingConfig(
                kind="cls",
                activation="sigmoid",
                labels=("LABEL_0", "LABEL_1"),
                generates=False,
                tasks=("classify",),
            ),
        ),
    ],
)
def test_the_config_says_it(
    tmp_path: Path, config: dict[str, object], facts: PoolingConfig
) -> None:
    assert load_pooling(folder(tmp_path, **config)) == facts


def test_where_nothing_is_to_be_learned_it_is_left_to_the_nodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_pooling(None) is None
    assert load_pooling(str(tmp_path)) is None
    model = folder(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "x.Unheard"}]')
    assert load_pooling(model) is None
    assert "Unheard" in caplog.text
    (tmp_path / "config.json").write_text("{")
    assert load_pooling(model) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"id2label": {"first": "good"}},
        {"num_labels": "many"},
        {"num_labels": 10**12},
        {"sentence_transformers": "5.0"},
        {"architectures": 5},
    ],
)
def test_a_config_of_no_model_s_kind_is_left_to_the_nodes(
    tmp_path: Path, odd: dict[str, object]
) -> None:
    """It may have come from any node."""
    architectures = ["BertForSequenceClassification"]
    said = {"model_type": "bert", "architectures": architectures, **odd}
    assert load_pooling(folder(tmp_path, **said)) is None

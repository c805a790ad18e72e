"""config.json files of every family, as transformers writes them."""

from typing import Any

from transformers import AutoConfig

from tests.fakes.checkpoints import FAMILY_SHAPE, SHAPE
from tests.fakes.taught import teach_transformers

MANY = {  # heads that any number of KV heads divides which a family may mean by silence
    "num_hidden_layers": 30,
    "num_attention_heads": 160,
    "hidden_size": 1280,
}


def raw_config(family: str, **changes: object) -> dict[str, Any]:
    """As transformers writes it; a change to None takes the key out."""
    teach_transformers()
    known = {key: one for key, one in FAMILY_SHAPE[family].items() if key != "layer_types"}
    raw = AutoConfig.for_model(family, **SHAPE | known | MANY).to_dict() | changes
    return {key: value for key, value in raw.items() if value is not None}

"""Which models are encoders (bidirectional attention), and their longest prompt. Torch-free.

Their KV is not worth caching, so whole prompts run by transformers' own code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.errors import UnusableCheckpoint

ENCODERS = frozenset(
    {
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra"),
        *("eurobert", "modernbert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"),
    }
)
FROM_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl"})
"""Models whose positions begin behind the padding token's id."""
SENTENCES = "sentence_bert_config.json"


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether it is an encoder, or a decoder that was trained with bidirectional attention."""
    ahead = config.get("use_bidirectional_attention") or config.get("is_causal") is False
    return bool(ahead) or config.get("model_type") in ENCODERS


def longest_prompt(folder: Path, config: Mapping[str, Any]) -> int:
    """In tokens: as many as have positions, or sentence-transformers' maximum if smaller."""
    kind, positions = config.get("model_type"), config.get("max_position_embeddings", 512)
    if not isinstance(positions, int):
        raise UnusableCheckpoint(
            f"config.json: max_position_embeddings has to be a number, and is {positions!r}"
        )
    if kind in FROM_PADDING:
        padding = config.get("pad_token_id", 1)
        if not isinstance(padding, int):
            raise UnusableCheckpoint(f"config.json: pad_token_id {padding} is no token")
        positions -= padding + 1
    file = folder / SENTENCES
    try:
        said = json.loads(file.read_bytes()) if file.exists() else {}
        return min(positions, int(said.get("max_seq_length") or positions))
    except (ValueError, TypeError, AttributeError) as error:
        raise UnusableCheckpoint(f"{file}: {error}") from error

"""GET /v1/models: what is served here, as OpenAI and vLLM list it."""

from collections.abc import Sequence

import msgspec

from api.errors import UnknownModel
from api.served import Served


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "pdserve"
    root: str
    parent: None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All names."""

    object: str = "list"
    data: Sequence[ModelCard]


def list_models(served: Served) -> ModelList:
    """Every name that a request may give."""
    return ModelList(data=[_card(served, name) for name in served.names])


def find_model(served: Served, name: str) -> ModelCard:
    """Raises UnknownModel."""
    if name not in served.names:
        raise UnknownModel(f"The model `{name}` does not exist.", "model")
    return _card(served, name)


def _card(served: Served, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=served.created,
        root=served.root or served.names[0],
        max_model_len=served.max_model_len(),
    )

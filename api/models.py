"""GET /v1/models: the models served here, in the format of OpenAI and vLLM."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from api.errors import ModelNotFound
from api.served import Models, ServedModel

PATH = "/v1/models"
OWNER = "pdserve"  # the owner in lists of models


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One name: a model's, or that of an adapter, whose `parent` is the model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = OWNER
    root: str
    parent: str | None = None
    max_model_len: int | None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All model names."""

    object: str = "list"
    data: Sequence[ModelCard]


def is_of_models(path: str) -> bool:
    """Whether a path is one of the models endpoints, even if nothing is served there."""
    return path == PATH or path.startswith(f"{PATH}/")


def list_models(models: Models) -> ModelList:
    """Every name that a request may give, listed once."""
    cards = dict[str, ModelCard]()
    for served in models.listed():
        for name in served.names:
            _add(cards, _card(served, name))
        for name in served.adapters:
            _add(cards, replace(_card(served, name), root=name, parent=served.names[0]))
    return ModelList(data=list(cards.values()))


def find_model(models: Models, name: str) -> ModelCard:
    """The card of one name; raises ModelNotFound."""
    for card in list_models(models).data:
        if card.id == name:
            return card
    raise ModelNotFound(f"The model `{name}` does not exist.", "model")


def _add(cards: dict[str, ModelCard], card: ModelCard) -> None:
    cards[card.id] = _shorter(cards.get(card.id, card), card)


def _shorter(one: ModelCard, other: ModelCard) -> ModelCard:
    """Of two models with one name, the limits that both have room for."""
    lengths = [card.max_model_len for card in (one, other) if card.max_model_len is not None]
    return replace(one, max_model_len=min(lengths, default=None))


def _card(served: ServedModel, name: str) -> ModelCard:
    return ModelCard(
        id=name,
        created=served.created,
        root=served.root or served.names[0],
        max_model_len=served.max_model_len(),
    )

"""GET /v1/models in Anthropic's form, for requests that name a version of its API."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from api.models import ModelCard, ModelList


class ModelInfo(msgspec.Struct, frozen=True, tag_field="type", tag="model"):
    """A model name; `created_at` as in RFC 3339, `max_input_tokens` the context length."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    lifecycle: Literal["active"] = "active"


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All model names: there is only one page."""

    data: Sequence[ModelInfo]
    has_more: Literal[False] = False
    first_id: str | None
    last_id: str | None


def info_of(card: ModelCard) -> ModelInfo:
    """One model in Anthropic's form."""
    created = datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ModelInfo(card.id, card.id, created, card.max_model_len)


def page_of(models: ModelList) -> ModelPage:
    """All models in Anthropic's form."""
    ids = [card.id for card in models.data]
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    return ModelPage(data=list(map(info_of, models.data)), first_id=first, last_id=last)

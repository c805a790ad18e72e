"""The JSON bodies of the pooling endpoints: OpenAI's embeddings, and vLLM's other endpoints."""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from engine.request import LARGEST_TOKEN, Limit, PoolingTask, TokenId

Input = str | list[str | TokenId | list[TokenId]] | None
Texts = str | list[str]
Encoding = Literal["float", "base64"]
Priority = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class PoolingBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all pooling bodies share; null is the same as absent.

    `truncate_prompt_tokens` -1 cuts a text to what the model has room for. Texts are cut at
    their end, unless `truncation_side` is left. `use_activation` false asks for vectors that
    are not normalised, and for logits.
    """

    model: str | None = None
    request_id: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=LARGEST_TOKEN)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    use_activation: bool | None = None
    priority: Priority | None = None
    cache_salt: str | None = None


class EmbeddingsBody(PoolingBody, frozen=True, kw_only=True):
    """POST /v1/embeddings."""

    input: Input = None
    encoding_format: Encoding | None = None
    dimensions: Limit | None = None


class TokenTypes(msgspec.Struct, frozen=True):
    """pdserve's own field, from proxy to node: the token type ids of each input."""

    token_types: list[list[TokenId]] = []


class VectorsBody(PoolingBody, frozen=True, kw_only=True):
    """POST /pooling: any task; the proxy also uses it to call its nodes."""

    input: Input = None
    task: PoolingTask | None = None
    encoding_format: Encoding | None = None
    dimensions: Limit | None = None
    pdserve: TokenTypes | None = None

    @property
    def segments(self) -> list[list[int]]:
        """The token type ids of each input; empty if there are none."""
        return self.pdserve.token_types if self.pdserve else []


class ClassifyBody(PoolingBody, frozen=True, kw_only=True):
    """POST /classify."""

    input: Input = None


class ScoreBody(PoolingBody, frozen=True, kw_only=True):
    """POST /score; `queries` and `documents` are other names for the two texts."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None


class RerankBody(PoolingBody, frozen=True, kw_only=True):
    """POST /rerank, as Jina and Cohere define it; `top_n` 0 means all documents."""

    query: str
    documents: list[str]
    top_n: Annotated[int, Meta(ge=0, le=LARGEST_TOKEN)] | None = None
    return_documents: bool | None = True


class PoolingUsage(msgspec.Struct, frozen=True):
    """The token counts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class PoolingItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input's result; each endpoint fills its own fields."""

    index: int
    object: str | UnsetType = UNSET
    embedding: list[float] | str | UnsetType = UNSET
    data: list[float] | list[list[float]] | str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    label: str | UnsetType | None = UNSET
    probs: list[float] | UnsetType = UNSET
    num_classes: int | UnsetType = UNSET
    document: Mapping[str, str] | UnsetType = UNSET
    relevance_score: float | UnsetType = UNSET


class PoolingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response of all pooling endpoints; reranked `results` are the best first."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[msgspec.Raw] | UnsetType = UNSET
    results: list[msgspec.Raw] | UnsetType = UNSET
    usage: PoolingUsage

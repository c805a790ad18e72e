"""Every operation of the proxy: what it takes and what it answers. Bodies are types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from api.bodies import ChatBody, CompletionBody
from api.messages.bodies import CountBody, MessagesBody
from api.messages.errors import PATH as MESSAGES
from api.messages.models import ModelInfo, ModelPage
from api.messages.shapes import MessageAnswer, TokenCount
from api.models import PATH as MODELS
from api.models import ModelCard, ModelList
from api.pooling.bodies import (
    ClassifyBody,
    EmbeddingsBody,
    RerankBody,
    ScoreBody,
    VectorsBody,
)
from api.responses.bodies import ResponsesBody
from api.responses.shapes import InputTokens
from api.routes import GENERATE
from api.token_answers import TokenAnswer
from api.token_bodies import TokensBody
from api.tokenize import DetokenizeBody, Detokenized, TokenizeBody, Tokenized
from discovery.registration import Context, Port

REFUSALS = (400, 401, 404, 405, 408, 413, 415, 429, 431, 500, 501, 502, 503, 504)
ADMIN_REFUSALS = (400, 401, 403, 404, 405, 408, 409, 413, 431, 500, 502, 503, 504)
Kind = Literal["model", "models", "text", "message", "vectors", "cluster", "admin"]


class InstanceBody(msgspec.Struct, frozen=True):
    """A node by hand, as vLLM's proxy has it."""

    type: Literal["prefill", "decode"]
    instance: str
    bootstrap_port: Port | None = None
    max_model_len: Context | None = None


class WorkerBody(msgspec.Struct, frozen=True):
    """The same, as SGLang's router has it."""

    url: str
    worker_type: Literal["prefill", "decode"]
    bootstrap_port: Port | None = None
    max_model_len: Context | None = None


class DrainBody(msgspec.Struct, frozen=True):
    """How a node is drained. `force`: even the last one that takes work."""

    force: bool = False


class RoleBody(DrainBody, frozen=True, kw_only=True):
    """The same, and what it is to be."""

    role: Literal["prefill", "decode"]


class Message(msgspec.Struct, frozen=True):
    """What was done."""

    message: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Without an `answer` type the answer is an object, or text, as `media` says.

    `anthropics`: the answer to clients of Anthropic's API, for paths that both APIs have.
    """

    kind: Kind
    summary: str
    body: type | None = None
    answer: type | None = None
    media: Sequence[str] = ("application/json",)
    statuses: Sequence[int] = (200,)
    anthropics: type | None = None

    @property
    def refusals(self) -> Sequence[int]:
        """The statuses it may be refused with."""
        return ADMIN_REFUSALS if self.kind == "admin" else REFUSALS


KEPT = "Always 404: no response is kept"
JSON, EVENTS, PLAIN, PAGE = "application/json", "text/event-stream", "text/plain", "text/html"


def _vectors(summary: str, body: type) -> Operation:
    return Operation("vectors", summary, body)


def _admin(summary: str, body: type | None = None, answer: type | None = None) -> Operation:
    return Operation("admin", summary, body, answer)


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("post", "/v1/completions"): Operation(
        "text", "Continue prompts", CompletionBody, None, (JSON, EVENTS)
    ),
    ("post", "/v1/chat/completions"): Operation(
        "text", "Answer a conversation", ChatBody, None, (JSON, EVENTS)
    ),
    ("post", "/v1/responses"): Operation(
        "text", "Answer a conversation of items", ResponsesBody, None, (JSON, EVENTS)
    ),
    ("post", "/v1/responses/input_tokens"): Operation(
        "text", "Count the tokens of such a conversation", ResponsesBody, InputTokens
    ),
    ("post", "/v1/responses/compact"): Operation(
        "model", "Always 404: nothing is compacted", statuses=()
    ),
    ("post", MESSAGES): Operation(
        "message",
        "Answer a conversation of blocks",
        MessagesBody,
        MessageAnswer,
        (JSON, EVENTS),
    ),
    ("post", f"{MESSAGES}/count_tokens"): Operation(
        "message", "Count a conversation's tokens", CountBody, TokenCount
    ),
    ("get", "/v1/responses/{name}"): Operation("model", KEPT, statuses=()),
    ("delete", "/v1/responses/{name}"): Operation("model", KEPT, statuses=()),
    ("get", "/v1/responses/{name}/input_items"): Operation("model", KEPT, statuses=()),
    ("post", "/v1/responses/{name}/cancel"): Operation("model", KEPT, statuses=()),
    ("post", GENERATE): Operation(
        "text", "Continue token ids", TokensBody, TokenAnswer, (JSON, EVENTS)
    ),
    ("get", MODELS): Operation(
        "models", "What is served", answer=ModelList, anthropics=ModelPage
    ),
    ("get", f"{MODELS}/{{name}}"): Operation(
        "models", "One of them", answer=ModelCard, anthropics=ModelInfo
    ),
    ("post", "/tokenize"): Operation("model", "Texts to tokens", TokenizeBody, Tokenized),
    ("post", "/detokenize"): Operation("model", "Tokens to text", DetokenizeBody, Detokenized),
    ("post", "/v1/embeddings"): _vectors("Vectors of texts", EmbeddingsBody),
    ("post", "/pooling"): _vectors("What the model pools", VectorsBody),
    ("post", "/classify"): _vectors("Classes of texts", ClassifyBody),
    ("post", "/score"): _vectors("Scores of pairs", ScoreBody),
    ("post", "/v1/score"): _vectors("Scores of pairs", ScoreBody),
    ("post", "/rerank"): _vectors("Documents, the best first", RerankBody),
    ("post", "/v1/rerank"): _vectors("Documents, the best first", RerankBody),
    ("post", "/v2/rerank"): _vectors("Documents, the best first", RerankBody),
    ("get", "/health"): Operation("cluster", "Whether requests can be answered"),
    ("get", "/status"): Operation("cluster", "Every node that is known"),
    ("get", "/metrics"): Operation("cluster", "For Prometheus", None, None, (PLAIN,)),
    ("get", "/metrics/targets"): Operation("cluster", "Every node, for Prometheus to find it"),
    ("get", "/requests/{name}"): Operation("cluster", "The timeline of a request"),
    ("get", "/openapi.json"): Operation("cluster", "This document"),
    ("get", "/docs"): Operation("cluster", "This document, for people", None, None, (PAGE,)),
    ("get", "/healthcheck"): Operation("cluster", "How many nodes there are"),
    ("get", "/liveness"): Operation("cluster", "Whether the proxy runs"),
    ("get", "/readiness"): Operation("cluster", "Whether requests can be answered"),
    ("get", "/get_loads"): Operation("cluster", "How busy every node is"),
    ("get", "/workers"): _admin("Every node, as other routers list them"),
    ("post", "/workers"): _admin("Add a node by hand", WorkerBody),
    ("get", "/workers/{name}"): _admin("One node"),
    ("delete", "/workers/{name}"): _admin("Forget it"),
    ("get", "/instances"): _admin("Every node"),
    ("delete", "/instances"): _admin("Forget a node", InstanceBody, Message),
    ("post", "/instances/add"): _admin("Add a node by hand", InstanceBody, Message),
    ("post", "/instances/remove"): _admin("Forget a node", InstanceBody, Message),
    ("get", "/instances/{name}"): _admin("One node"),
    ("delete", "/instances/{name}"): _admin("Forget it", answer=Message),
    ("post", "/instances/{name}/drain"): _admin("Send it no new work", DrainBody),
    ("post", "/instances/{name}/undrain"): _admin("Send it work again"),
    ("post", "/instances/{name}/role"): Operation(
        "admin", "Let it do the other kind of leg", RoleBody, statuses=(200, 202)
    ),
}

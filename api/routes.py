"""The OpenAI endpoints over HTTP. The only module of this package that knows Quart."""

import time
from collections.abc import Awaitable, Callable

import msgspec
from quart import Blueprint, Quart, Response, g, request
from werkzeug.exceptions import HTTPException

from api.door.limiter import LARGEST_BODY
from api.endpoints import (
    EVENTS,
    JSON,
    UNBUFFERED,
    Endpoint,
    HttpCall,
    TextEndpoints,
    check_type,
    start_stream,
)
from api.errors import (
    SERVER_ERROR,
    ApiError,
    EndpointNotOffered,
    ErrorBody,
    ResponseNotStored,
    body_of,
    error_body,
)
from api.gate import ADMIT_ALL, AdmissionControl
from api.generator import Embedder, Generator, StreamFailed
from api.messages.errors import PATH as MESSAGES
from api.messages.models import info_of, page_of
from api.models import PATH as MODELS
from api.models import find_model, list_models
from api.pooling.bodies import (
    ClassifyBody,
    EmbeddingsBody,
    PoolingResponse,
    RerankBody,
    ScoreBody,
    VectorsBody,
)
from api.pooling.endpoints import Body, PoolingEndpoints, has_text, read
from api.refusals import VERSION, error_response, request_id_headers, wants_anthropic_format
from api.served import LegReader, Models, read_whole_request
from api.sse import answer_body
from api.tokenize import DetokenizeBody, TokenizeBody, detokenized, tokenized
from api.tokenize import read as read_tokens

GENERATE = "/inference/v1/generate"
LONGEST_PATH = 200  # of a path that is repeated in an error message
WHERE = {404: "There is no {} here", 405: "{}: this path takes {}"}
NOT_COMPACTED = (
    "Conversations are not compacted here: leave out of input what is not needed any more, or "
    'say truncation "auto"'
)
Pooling = Callable[[PoolingEndpoints, Body, str], Awaitable[PoolingResponse]]


def http_app(name: str) -> Quart:
    """An app without routes. How long a body may take is up to the server (DoorLimits).

    Quart would wait by `wait_for`. Before Python 3.12 that loses the cancellation of a call
    whose client leaves just as the body is complete, and the call would run to its end.
    """
    app = Quart(name)
    app.config.update(MAX_CONTENT_LENGTH=LARGEST_BODY, BODY_TIMEOUT=None)
    return app


def openai_routes(
    generator: Generator,
    models: Models,
    read_leg: LegReader = read_whole_request,
    *,
    embedder: Embedder | None = None,
    gate: AdmissionControl = ADMIT_ALL,
    clock: Callable[[], float] = time.time,
) -> Blueprint:
    """Text completions, chat completions and models over a Generator, vectors over an Embedder.

    Requests for the Generator wait at the gate.

    Registered on an app, it also gives the app's own HTTP errors OpenAI's form.
    """
    routes = Blueprint("openai", __name__)

    texts = TextEndpoints(generator, models, read_leg, gate, clock)

    @routes.post("/v1/completions")
    async def completions() -> Response:
        return await _answered(texts.completions)

    @routes.post("/v1/chat/completions")
    async def chat() -> Response:
        return await _answered(texts.chat)

    @routes.post("/v1/responses")
    async def responses() -> Response:
        return await _answered(texts.responses)

    @routes.post("/v1/responses/input_tokens")
    async def input_tokens() -> Response:
        return _json(await texts.input_tokens(await _call()))

    _forget(routes)
    _message(routes, texts)
    _tokenize(routes, models)

    _list(routes, models)
    if embedder is not None:
        _pool(routes, embedder, models, clock)
    routes.after_request(_named)
    _explain_errors(routes)
    return routes


def token_routes(texts: TextEndpoints) -> Blueprint:
    """Completions of token ids, for servers that are not nodes: nodes have legs there."""
    routes = Blueprint("tokens", __name__)

    @routes.post(GENERATE)
    async def generate() -> Response:
        return await _answered(texts.tokens)

    routes.after_request(_named)
    _explain_errors(routes)
    return routes


def _message(routes: Blueprint, texts: TextEndpoints) -> None:
    """Add the endpoints of Anthropic's messages."""

    @routes.post(MESSAGES)
    async def messages() -> Response:
        return await _answered(texts.messages)

    @routes.post(f"{MESSAGES}/count_tokens")
    async def count_tokens() -> Response:
        return _json(await texts.count_tokens(await _call()))


def _list(routes: Blueprint, models: Models) -> None:
    """Add the lists of models, for clients of either API."""

    @routes.get(MODELS)
    async def all_models() -> Response:
        found = list_models(models)
        return _json(page_of(found) if _for_anthropics() else found)

    @routes.get(f"{MODELS}/<path:name>")
    async def one_model(name: str) -> Response:
        found = find_model(models, name)
        return _json(info_of(found) if _for_anthropics() else found)


def _for_anthropics() -> bool:
    return wants_anthropic_format(request.path, request.headers.get(VERSION))


def _forget(routes: Blueprint) -> None:
    """Add the endpoints of stored responses and of compaction, all of which refuse."""

    @routes.route("/v1/responses/<name>", methods=["GET", "DELETE"])
    @routes.get("/v1/responses/<name>/input_items")
    @routes.post("/v1/responses/<name>/cancel")
    async def forgotten(name: str) -> Response:
        raise ResponseNotStored(
            f"There is no response {name[:LONGEST_PATH]!r} here: none is kept"
        )

    @routes.post("/v1/responses/compact")
    async def compact() -> Response:
        raise EndpointNotOffered(NOT_COMPACTED)


def _tokenize(routes: Blueprint, models: Models) -> None:
    """Add the tokenizer's endpoints."""

    @routes.post("/tokenize")
    async def tokenize() -> Response:
        call = await _call()
        body = read_tokens(call.data, TokenizeBody)
        served = await models.find(body.model, call.assign_id(body))
        return _json(await tokenized(served, body, len(call.data)))

    @routes.post("/detokenize")
    async def detokenize() -> Response:
        call = await _call()
        body = read_tokens(call.data, DetokenizeBody)
        return _json(
            await detokenized(await models.find(body.model, call.assign_id(body)), body)
        )


def _pool(
    routes: Blueprint, embedder: Embedder, models: Models, clock: Callable[[], float]
) -> None:
    """Add the pooling endpoints, under vLLM's paths."""

    def serve(kind: type[Body], answer: Pooling[Body], *paths: str) -> None:
        async def endpoint() -> Response:
            call = await _call()
            body = read(call.data, kind)
            outer_id = call.assign_id(body)
            served = await models.find(body.model, outer_id, text=has_text(body))
            door = PoolingEndpoints(embedder, served, clock)
            return _json(await answer(door, body, outer_id))

        for path in paths:
            routes.add_url_rule(path, path.replace("/", "_"), endpoint, methods=["POST"])

    serve(EmbeddingsBody, PoolingEndpoints.embeddings, "/v1/embeddings")
    serve(VectorsBody, PoolingEndpoints.pooling, "/pooling")
    serve(ClassifyBody, PoolingEndpoints.classify, "/classify")
    serve(ScoreBody, PoolingEndpoints.score, "/score", "/v1/score")
    serve(RerankBody, PoolingEndpoints.rerank, "/rerank", "/v1/rerank", "/v2/rerank")


async def _call() -> HttpCall:
    """The request as an HttpCall; raises UnsupportedMediaType."""
    check_type(request.headers)
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)
    g.call = call = HttpCall(request.headers, data)
    return call


async def _named(response: Response) -> Response:
    """Set the request id's headers, on errors too: the log has this id."""
    response.headers.update(request_id_headers(request.path, _name()))
    return response


def _name() -> str | None:
    return g.call.outer_id if "call" in g else None


async def _answered(endpoint: Endpoint) -> Response:
    writer = await endpoint(await _call())
    if not writer.streams:
        return Response(await answer_body(writer), mimetype=JSON)
    response = Response(await start_stream(writer), content_type=EVENTS, headers=UNBUFFERED)
    response.timeout = None  # otherwise Quart cuts a stream after a minute
    return response


def _json(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype=JSON)


def _refusal(status: int, error: ErrorBody) -> Response:
    version = request.headers.get(VERSION)
    return _json(error_response(request.path, status, error, _name(), version), status)


def _explain_errors(routes: Blueprint) -> None:
    """Make every error readable for the client, in the form of its API."""

    @routes.errorhandler(ApiError)
    @routes.errorhandler(StreamFailed)
    async def failed(failure: ApiError | StreamFailed) -> Response:
        response = _refusal(failure.status, body_of(failure))
        if failure.retry_after_s is not None:
            response.headers["Retry-After"] = str(failure.retry_after_s)
        return response

    @routes.app_errorhandler(HTTPException)
    async def http(error: HTTPException) -> Response:
        status = error.code or SERVER_ERROR
        where = f"{request.method} {request.path[:LONGEST_PATH]}"
        allow = dict(error.get_headers()).get("Allow")
        said = WHERE[status].format(where, allow) if status in WHERE else error.description
        response = _refusal(status, error_body(status, said or error.name))
        if allow:
            response.headers["Allow"] = allow
        return response

"""The OpenAI endpoints over HTTP. The only module of the room that knows Quart."""

import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from quart import Blueprint, Response, g, request
from werkzeug.exceptions import HTTPException

from api.answering import Answer
from api.asking import Asker, needs_text
from api.bodies import Priority, TextBody, Timeout, read_chat, read_completion
from api.calls import Asked
from api.chat import ChatForm
from api.completions import CompletionForm
from api.envelopes import Form, Writer
from api.errors import SERVER_ERROR, ApiError, BadRequest, WrongType, body_of, error_body
from api.gate import OPEN, Gate
from api.generator import Embedder, Generator, StreamFailed
from api.logprobs import Telling
from api.models import find_model, list_models
from api.pooling.bodies import (
    ClassifyBody,
    EmbeddingsBody,
    Numbers,
    PoolingBody,
    RerankBody,
    ScoreBody,
    VectorsBody,
)
from api.pooling.endpoints import Body, PoolingDoor, has_text, read
from api.served import Models, ReadLeg, no_legs
from api.sse import frames, whole

JSON, EVENTS = "application/json", "text/event-stream; charset=utf-8"
REQUEST_ID = "X-Request-Id"
IN_HEADERS = {
    "priority": ("X-Vllm-Priority", Priority),
    "timeout": ("X-Request-Timeout", Timeout),
    "session_id": ("X-Session-Id", str),
}
AS_IT_COMES = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""What keeps nginx, and others that read the second, from saving up a stream."""
Pooling = Callable[[PoolingDoor, Body, str], Awaitable[Numbers]]
TextKind = TypeVar("TextKind", bound=TextBody)
SANE_ID = re.compile(r"[!#-;=?-\[\]-~]{1,256}")


def openai_routes(
    generator: Generator,
    models: Models,
    read_leg: ReadLeg = no_legs,
    *,
    embedder: Embedder | None = None,
    gate: Gate = OPEN,
    clock: Callable[[], float] = time.time,
) -> Blueprint:
    """Text completions, chat completions and models over a Generator, vectors over an Embedder.

    What is to be answered by the Generator waits at the gate.

    Registered on an app, it also gives OpenAI's form to the app's own HTTP errors.
    """
    routes = Blueprint("openai", __name__)

    async def answer(asked: Asked, form: Form) -> Response:
        writer = Writer(Answer(generator, asked, gate), form, int(clock()))
        if asked.body.stream:
            return await _streamed(writer)
        return Response(await whole(writer), mimetype=JSON)

    @routes.post("/v1/completions")
    async def completions() -> Response:
        body = _with_headers(read_completion(await _body()))
        outer_id = _outer_id(body)
        served = await models.find(body.model, outer_id, text=needs_text(body))
        asked = await Asker(served, read_leg).completion(body, outer_id)
        return await answer(asked, CompletionForm(_telling(asked)))

    @routes.post("/v1/chat/completions")
    async def chat() -> Response:
        data = await _body()
        body = _with_headers(read_chat(data))
        outer_id = _outer_id(body)
        served = await models.find(body.model, outer_id)
        asked = await Asker(served, read_leg).chat(body, outer_id, len(data))
        return await answer(asked, ChatForm(_telling(asked)))

    @routes.get("/v1/models")
    async def all_models() -> Response:
        return _json(list_models(models))

    @routes.get("/v1/models/<path:name>")
    async def one_model(name: str) -> Response:
        return _json(find_model(models, name))

    if embedder is not None:
        _pool(routes, embedder, models, clock)
    routes.after_request(_named)
    _explain_errors(routes)
    return routes


def _pool(
    routes: Blueprint, embedder: Embedder, models: Models, clock: Callable[[], float]
) -> None:
    """What answers with numbers, under the paths that vLLM has for it."""

    def serve(kind: type[Body], answer: Pooling[Body], *paths: str) -> None:
        async def endpoint() -> Response:
            body = read(await _body(), kind)
            outer_id = _outer_id(body)
            served = await models.find(body.model, outer_id, text=has_text(body))
            door = PoolingDoor(embedder, served, clock)
            return _json(await answer(door, body, outer_id))

        for path in paths:
            routes.add_url_rule(path, path.replace("/", "_"), endpoint, methods=["POST"])

    serve(EmbeddingsBody, PoolingDoor.embeddings, "/v1/embeddings")
    serve(VectorsBody, PoolingDoor.pooling, "/pooling")
    serve(ClassifyBody, PoolingDoor.classify, "/classify")
    serve(ScoreBody, PoolingDoor.score, "/score", "/v1/score")
    serve(RerankBody, PoolingDoor.rerank, "/rerank", "/v1/rerank", "/v2/rerank")


def _telling(asked: Asked) -> Telling:
    return Telling(asked.codec.vocabulary, bool(asked.body.return_tokens_as_token_ids))


async def _body() -> bytes:
    """A body without a type is taken for JSON; a form that a browser can send is not."""
    kind = request.mimetype
    if kind and kind != JSON and not kind.endswith("+json"):
        raise WrongType(f"the body must be {JSON}, not {kind}")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise WrongType("the body must not be compressed")
    data = await request.get_data(as_text=False)
    assert isinstance(data, bytes)
    return data


def _with_headers(body: TextKind) -> TextKind:
    """What a body leaves open may be said in a header; raises BadRequest."""
    said = dict[str, object]()
    for name, (header, kind) in IN_HEADERS.items():
        if getattr(body, name) is None and (given := request.headers.get(header)) is not None:
            try:
                said[name] = msgspec.convert(given, kind, strict=False)
            except msgspec.ValidationError as error:
                raise BadRequest(f"{header}: {error}", header) from error
    return replace(body, **said) if said else body


def _outer_id(body: TextBody | PoolingBody) -> str:
    """The client's own name for the request where it is a sane one, or else a new one."""
    given = (request.headers.get(REQUEST_ID), body.request_id)
    sane = (one for one in given if one and SANE_ID.fullmatch(one))
    g.outer_id = outer_id = next(sane, None) or uuid.uuid4().hex
    return outer_id


async def _named(response: Response) -> Response:
    """A failure too: by this name the log has it."""
    if "outer_id" in g:
        response.headers[REQUEST_ID] = g.outer_id
    return response


async def _streamed(writer: Writer) -> Response:
    """Begins only when there is something to say, as a failure until then has a status."""
    events = frames(writer)
    try:
        first = await anext(events)
    except BaseException:
        await events.aclose()
        raise
    response = Response(_all(first, events), content_type=EVENTS, headers=AS_IT_COMES)
    response.timeout = None  # Quart cuts a stream after a minute otherwise
    return response


async def _all(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


def _json(body: msgspec.Struct, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, mimetype=JSON)


def _explain_errors(routes: Blueprint) -> None:
    """Whatever goes wrong, the client can read it where it reads all errors."""

    @routes.errorhandler(ApiError)
    @routes.errorhandler(StreamFailed)
    async def failed(failure: ApiError | StreamFailed) -> Response:
        response = _json(body_of(failure), failure.status)
        if failure.retry_after_s is not None:
            response.headers["Retry-After"] = str(failure.retry_after_s)
        return response

    @routes.app_errorhandler(HTTPException)
    async def http(error: HTTPException) -> Response:
        status = error.code or SERVER_ERROR
        response = _json(error_body(status, error.description or error.name), status)
        if allow := dict(error.get_headers()).get("Allow"):
            response.headers["Allow"] = allow
        return response

"""Builds the OpenAPI document of an app from its routes and the table of operations."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from quart import Quart

from api.errors import ErrorBody
from api.fields import CHAT, COMPLETIONS
from api.messages.errors import MessagesError
from api.messages.fields import MESSAGES
from api.refusals import VERSION as ANTHROPIC_VERSION
from api.responses.fields import RESPONSES
from api.token_bodies import GENERATE
from proxy.openapi.operations import JSON, OPERATIONS, Kind, Operation

VERSION = "3.1.0"
REFERENCES = "#/components/schemas/{name}"
PLACEHOLDER = re.compile(r"<(?:\w+:)?(\w+)>")
REFUSED = (
    ("CompletionBody", COMPLETIONS),
    ("ChatBody", CHAT),
    ("ResponsesBody", RESPONSES),
    ("MessagesBody", MESSAGES),
    ("CountBody", MESSAGES),
    ("TokensBody", GENERATE),
)
NOT_TOLD = {"head", "options"}
Json = dict[str, Any]
ERRORS: set[type] = {ErrorBody, MessagesError}
FORMS: Mapping[Kind, Sequence[type]] = {
    "message": (MessagesError,),
    "models": (ErrorBody, MessagesError),
}
"""The error types, for kinds that do not only have OpenAI's."""
OBJECT: Json = {"type": "object"}
TEXT: Json = {"type": "string"}
HEADERS: Json = {
    "X-Request-Id": {"type": "string", "maxLength": 256},
    "X-Request-Timeout": {"type": "number", "exclusiveMinimum": 0},
    "X-Vllm-Priority": {"type": "integer"},
}
VERSIONS: Json = {ANTHROPIC_VERSION: {"type": "string"}}
SCHEMES: Json = {
    "client": {"type": "http", "scheme": "bearer"},
    "admin": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "message": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
EITHER_KEY: Sequence[Json] = [{}, {"client": []}, {"message": []}]
SECURITY: Mapping[Kind, Sequence[Json]] = {
    "admin": [{"admin": []}],
    "message": EITHER_KEY,
    "models": EITHER_KEY,
}
PARAMETERS: Mapping[Kind, Json] = {"text": HEADERS, "message": HEADERS, "models": VERSIONS}


def routes_of(app: Quart) -> Iterator[tuple[str, str]]:
    """Method and path of every route, in OpenAPI's notation."""
    for rule in app.url_map.iter_rules():
        if rule.endpoint != "static":
            path = PLACEHOLDER.sub(r"{\1}", rule.rule)
            methods = {method.lower() for method in rule.methods or ()} - NOT_TOLD
            yield from ((method, path) for method in sorted(methods))


def document(app: Quart, version: str) -> Json:
    """Every route of the app; one that the table lacks is described without its types."""
    paths = dict[str, Json]()
    for method, path in routes_of(app):
        operation = OPERATIONS.get((method, path), Operation("cluster", path))
        paths.setdefault(path, {})[method] = _operation(path, operation)
    return {
        "openapi": VERSION,
        "info": {"title": "pdserve", "version": version},
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": SCHEMES},
    }


def _schemas() -> Json:
    """The schemas of all types that a body or an answer has."""
    kinds = {kind for one in OPERATIONS.values() for kind in _types(one)} | ERRORS
    _, found = msgspec.json.schema_components(kinds, ref_template=REFERENCES)
    for name, table in REFUSED:
        found[name].setdefault("description", "")
        found[name]["description"] += f" Known and refused: {', '.join(sorted(table))}."
    return dict(found)


def _types(operation: Operation) -> Iterator[type]:
    for kind in (operation.body, operation.answer, operation.anthropics):
        if kind is not None:
            yield kind


def _operation(path: str, operation: Operation) -> Json:
    told: Json = {
        "summary": operation.summary,
        "tags": [operation.kind],
        "parameters": list(_parameters(path, operation)),
        "responses": _responses(operation),
        "security": SECURITY.get(operation.kind, [{}, {"client": []}]),
    }
    if operation.body is not None:
        content = {JSON: {"schema": _reference(operation.body)}}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _parameters(path: str, operation: Operation) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", path):
        schema = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    for name, schema in PARAMETERS.get(operation.kind, {}).items():
        yield {"name": name, "in": "header", "schema": schema}


def _responses(operation: Operation) -> Json:
    kinds = [one for one in (operation.answer, operation.anthropics) if one is not None]
    schema = _any_of(*kinds) if kinds else OBJECT
    media = {one: {"schema": schema if one == JSON else TEXT} for one in operation.media}
    done = {"description": "Done", "content": media}
    error = _any_of(*FORMS.get(operation.kind, (ErrorBody,)))
    refused = {"description": "Refused", "content": {JSON: {"schema": error}}}
    return {
        **{str(status): done for status in operation.statuses},
        **{str(status): refused for status in operation.refusals},
    }


def _any_of(*kinds: type) -> Json:
    told = [_reference(one) for one in kinds]
    return told[0] if len(told) == 1 else {"anyOf": told}


def _reference(kind: type) -> Json:
    return {"$ref": REFERENCES.format(name=kind.__name__)}

"""A client of the OpenAI routes, without a socket."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from quart import Quart

from api.generator import Embedder, Generator
from api.routes import openai_routes
from api.served import LegReader, ServedModel, read_whole_request
from tests.fakes.text import served

NOW = 1_000
DONE = "[DONE]"
NO_HEADERS: Mapping[str, str] = {}
Headers = Mapping[str, str]
Json: TypeAlias = Any  # a test looks where it likes


@dataclass(frozen=True)
class Said:
    """One answer, read to its end."""

    status: int
    headers: Headers
    body: str

    @property
    def json(self) -> Json:
        return msgspec.json.decode(self.body)

    @property
    def events(self) -> list[Json]:
        """The chunks of a stream, which must end as it should."""
        frames = self.body.split("\n\n")
        assert frames.pop() == ""
        assert all(frame.startswith("data: ") for frame in frames)
        *chunks, done = (frame.removeprefix("data: ") for frame in frames)
        assert done == DONE
        return [msgspec.json.decode(chunk) for chunk in chunks]

    @property
    def text(self) -> str:
        """What the chunks of the first choice add up to."""
        choices = [choice for chunk in self.events for choice in chunk["choices"]]
        said = [choice.get("delta", choice) for choice in choices]
        return "".join(part.get("content", part.get("text", "")) for part in said)


class Client:
    """Speaks to one door."""

    def __init__(
        self,
        door: Generator,
        model: ServedModel | None = None,
        legs: LegReader = read_whole_request,
        embedder: Embedder | None = None,
    ) -> None:
        self.app = Quart(__name__)
        routes = openai_routes(
            door, model or served(), legs, embedder=embedder, clock=lambda: NOW
        )
        self.app.register_blueprint(routes)

    async def ask(
        self, method: str, path: str, body: bytes = b"", headers: Headers = NO_HEADERS
    ) -> Said:
        client: Any = self.app.test_client()
        response = await client.open(path, method=method, data=body, headers={**headers})
        text = await response.get_data(as_text=True)
        return Said(response.status_code, dict(response.headers), text)

    async def complete(self, headers: Headers = NO_HEADERS, **fields: object) -> Said:
        return await self._post("/v1/completions", {"prompt": "the", **fields}, headers)

    async def chat(self, headers: Headers = NO_HEADERS, **fields: object) -> Said:
        hi = [{"role": "user", "content": "hi"}]
        return await self._post("/v1/chat/completions", {"messages": hi, **fields}, headers)

    async def post(self, path: str, headers: Headers = NO_HEADERS, **fields: object) -> Said:
        return await self._post(path, fields, headers)

    async def _post(self, path: str, body: Mapping[str, object], headers: Headers) -> Said:
        kind = {"Content-Type": "application/json"}
        return await self.ask("POST", path, msgspec.json.encode(body), {**kind, **headers})

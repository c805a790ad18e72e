"""A client of the endpoints that pool."""

from engine.pooling.config import PoolingConfig
from tests.fakes.embedder import EMBEDS, FakeEmbedder, serving
from tests.fakes.http import Client, Said
from tests.fakes.text import saying


def client(
    embedder: FakeEmbedder | None = None,
    facts: PoolingConfig | None = EMBEDS,
    context: int | None = 50,
) -> Client:
    model = serving(facts, context=context)
    return Client(saying("hi"), model, embedder=embedder or FakeEmbedder())


def param(said: Said) -> str | None:
    assert said.status == 400, said.body
    found: str | None = said.json["error"]["param"]
    return found

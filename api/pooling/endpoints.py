"""The pooling endpoints: their requests, and the answers that they make of the vectors."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET

from api.bodies import convert, read_object
from api.errors import BadRequest
from api.fields import POOLING
from api.generator import Embedder
from api.pooling.batches import PoolingBatches, Vector
from api.pooling.bodies import (
    ClassifyBody,
    EmbeddingsBody,
    PoolingBody,
    PoolingItem,
    PoolingResponse,
    PoolingUsage,
    RerankBody,
    ScoreBody,
    Texts,
    VectorsBody,
)
from api.pooling.request_parser import PoolingRequestParser, PoolingSpec
from api.pooling.response_items import encode_vector, label_of, pooling_item, write_items
from api.pooling.scoring import Pair, cosine, pairs_of
from api.served import ServedModel
from engine.request import PoolingRequest

Body = TypeVar("Body", bound=PoolingBody)


def read(data: bytes, kind: type[Body]) -> Body:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return convert(read_object(data, POOLING), kind)


def has_text(body: PoolingBody) -> bool:
    """Whether any input needs the tokenizer: not if all are token ids."""
    given = getattr(body, "input", "")
    inputs = given if isinstance(given, list) else [given]
    return str in set(map(type, inputs))


@dataclass(frozen=True, slots=True)
class PoolingEndpoints:
    """All pooling endpoints over an Embedder. Each raises ApiError or StreamFailed."""

    embedder: Embedder
    served: ServedModel
    clock: Callable[[], float]

    @property
    def parser(self) -> PoolingRequestParser:
        """The parser of these endpoints' inputs."""
        return PoolingRequestParser(self.served)

    async def embeddings(self, body: EmbeddingsBody, outer_id: str) -> PoolingResponse:
        """POST /v1/embeddings."""
        model = self._model(body)
        self.parser.check("embed")
        wanted = PoolingSpec("embed", body.dimensions)
        requests = await self.parser.inputs(body, body.input, wanted, outer_id)
        vectors = await PoolingBatches(self.embedder).run(requests)
        data = (
            PoolingItem(index, "embedding", embedding=encode_vector(one, body.encoding_format))
            for index, one in enumerate(vectors)
        )
        return await self._answer(f"embd-{outer_id}", model, data, requests)

    async def pooling(self, body: VectorsBody, outer_id: str) -> PoolingResponse:
        """POST /pooling."""
        model, facts = self._model(body), self.served.pooling
        task = body.task or (facts.tasks[0] if facts else "embed")
        self.parser.check(task, "task")
        wanted = PoolingSpec(task, body.dimensions)
        requests = await self.parser.inputs(body, body.input, wanted, outer_id, body.segments)
        vectors = await PoolingBatches(self.embedder).run(requests)
        whole = task.startswith("token_")
        data = (
            pooling_item(index, one, body.encoding_format, whole=whole)
            for index, one in enumerate(vectors)
        )
        return await self._answer(f"pool-{outer_id}", model, data, requests)

    async def classify(self, body: ClassifyBody, outer_id: str) -> PoolingResponse:
        """POST /classify."""
        model = self._model(body)
        self.parser.check("classify")
        requests = await self.parser.inputs(body, body.input, PoolingSpec("classify"), outer_id)
        vectors = await PoolingBatches(self.embedder).run(requests)
        labels = self.served.pooling.labels if self.served.pooling else ()
        data = (
            PoolingItem(
                index,
                label=label_of(one, labels),
                probs=one.values,
                num_classes=one.rows.shape[1],
            )
            for index, one in enumerate(vectors)
        )
        return await self._answer(f"classify-{outer_id}", model, data, requests)

    async def score(self, body: ScoreBody, outer_id: str) -> PoolingResponse:
        """POST /score."""
        model = self._model(body)
        first = _one_of(body.text_1, body.queries, "text_1", "queries")
        second = _one_of(body.text_2, body.documents, "text_2", "documents")
        pairs = pairs_of(first, second)
        scores, requests = await self._scores(body, pairs, outer_id)
        data = (PoolingItem(index, "score", score=one) for index, one in enumerate(scores))
        return await self._answer(f"score-{outer_id}", model, data, requests)

    async def rerank(self, body: RerankBody, outer_id: str) -> PoolingResponse:
        """POST /rerank: the best documents first; equal scores keep their order."""
        model = self._model(body)
        pairs = pairs_of(body.query, body.documents, "documents")
        scores, requests = await self._scores(body, pairs, outer_id)
        best = sorted(enumerate(scores), key=lambda one: -one[1])[: body.top_n or None]
        told = body.return_documents is not False
        results = (
            PoolingItem(
                index,
                document={"text": body.documents[index]} if told else UNSET,
                relevance_score=score,
            )
            for index, score in best
        )
        return await self._answer(f"rerank-{outer_id}", model, results, requests, ranked=True)

    def _model(self, body: PoolingBody) -> str:
        """The name in the answer; raises ApiError for one that is no model's."""
        if (adapter := self.served.adapter(body.model)) is not None:
            why = f"{adapter} is a LoRA adapter: adapters are for generation only"
            raise BadRequest(why, "model")
        return self.served.resolve_name(body.model)

    async def _scores(
        self, body: PoolingBody, pairs: Sequence[Pair], outer_id: str
    ) -> tuple[list[float], list[PoolingRequest]]:
        """The scores: from a cross-encoder's pairs, or by comparing the texts' embeddings."""
        facts, batches = self.served.pooling, PoolingBatches(self.embedder)
        if facts is not None and not facts.scores:
            labels = f"The model tells {len(facts.labels)} classes apart"
            raise BadRequest(f"{labels}: a score needs embeddings, or a head of one output")
        if facts is not None and facts.labels:
            requests = await self.parser.pairs(body, pairs, outer_id)
            return [one.values[0] for one in await batches.run(requests)], requests
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        requests = await self.parser.texts(body, texts, outer_id)
        vectors: dict[str, Vector] = dict(zip(texts, await batches.run(requests), strict=True))
        return [cosine(vectors[one], vectors[two]) for one, two in pairs], requests

    async def _answer(
        self,
        name: str,
        model: str,
        data: Iterable[PoolingItem],
        requests: Sequence[PoolingRequest],
        *,
        ranked: bool = False,
    ) -> PoolingResponse:
        tokens = sum(len(one.prompt) for one in requests)
        created, usage, said = (
            int(self.clock()),
            PoolingUsage(tokens, tokens),
            await write_items(data),
        )
        if ranked:
            return PoolingResponse(
                id=name, created=created, model=model, results=said, usage=usage
            )
        return PoolingResponse(id=name, created=created, model=model, data=said, usage=usage)


def _one_of(given: Texts | None, other: Texts | None, name: str, alias: str) -> Texts:
    if given is not None and other is not None:
        raise BadRequest(f"{name} and {alias} are the same field: give one", alias)
    found = given if given is not None else other
    if not found:
        raise BadRequest(f"{name} must not be empty", name)
    return found

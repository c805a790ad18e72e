"""An Embedder that plays with tokens, and counts what runs."""

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenizers import processors

from api.generator import PooledEvent
from api.served import ServedModel
from api.text.tokenizing import TextCodec, text_codec
from engine.pooling.config import PoolingConfig
from engine.request import PoolingRequest
from tests.fakes.text import byte_level

EMBEDS = PoolingConfig(dimensions=())
CLASSES = PoolingConfig(
    labels=("good", "bad", "ugly"), generates=False, tasks=("classify", "token_classify")
)
CROSS = PoolingConfig(labels=("fits",), generates=False, tasks=("classify",))
CLS, SEP = "<cls>", "<sep>"


def shape_of(request: PoolingRequest) -> list[float]:
    """How long a prompt is, its sum, and its first token."""
    return [float(len(request.prompt)), float(sum(request.prompt)), float(request.prompt[0])]


@dataclass
class FakeEmbedder:
    """`numbers` makes the vector of a request; `gate`, if there is one, is waited for."""

    numbers: Callable[[PoolingRequest], Sequence[float]] = shape_of
    gate: asyncio.Event | None = None
    failure: Exception | None = None  # of the first call; others wait for the gate
    asked: list[PoolingRequest] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    running: int = 0
    most: int = 0

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        self.asked += requests
        self.batches.append(len(requests))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            first = len(self.batches) == 1
            await (self.gate.wait() if self.gate and not first else asyncio.sleep(0))
            if self.failure and first:
                raise self.failure
            return [self._event(one) for one in requests]
        finally:
            self.running -= 1

    def _event(self, request: PoolingRequest) -> PooledEvent:
        values = array("f", self.numbers(request))
        rows = len(request.prompt) if request.task.startswith("token_") else 1
        return PooledEvent((values * rows).tobytes(), len(values))


def serving(
    facts: PoolingConfig | None, *, context: int | None = 50, codec: TextCodec | None = None
) -> ServedModel:
    """One model that pools like this."""
    return ServedModel(
        ("tiny",), codec or bracketed(), lambda: context, created=7, pooling=facts
    )


def bracketed() -> TextCodec:
    """Puts special tokens around a text and between two, which it tells apart by segment."""
    plain = byte_level()
    assert plain.fast is not None
    fast = type(plain.fast).from_str(plain.fast.to_str())
    fast.add_special_tokens([CLS, SEP])
    known = [(name, fast.token_to_id(name)) for name in (CLS, SEP)]
    fast.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=known
    )
    wrapped = type(plain.tokenizer)(tokenizer_object=fast)  # type: ignore[call-arg]
    return text_codec(wrapped)

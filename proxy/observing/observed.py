"""The pipeline as the door sees it: each request is counted, timed and told in one line."""

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace

from api.generator import WHOLE, Event, Leg, PooledEvent
from engine.request import PoolingRequest, Request
from proxy.observing.metrics import ProxyMetrics
from proxy.observing.story import CLOSED, FAILED, POOLED, NotedPolicy, Story
from proxy.pipeline import Pipeline
from proxy.pooling import PoolingPipeline

endpoint: ContextVar[str] = ContextVar("endpoint", default="-")
"""Which path the client called: it belongs to the context a request is answered in."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """A Generator and an Embedder that adds nothing to what is said and leaves nothing out."""

    pipeline: Pipeline
    metrics: ProxyMetrics
    model: str
    pooling: PoolingPipeline

    async def stream(self, request: Request, leg: Leg = WHOLE) -> AsyncGenerator[Event]:
        """See Generator."""
        story, clock = Story(request, endpoint.get()), self.pipeline.clock
        policy = NotedPolicy(self.pipeline.policy, story)
        pipeline, begun = replace(self.pipeline, policy=policy), clock()
        self.metrics.requests_in_flight += 1
        try:
            async with aclosing(pipeline.stream(request, leg)) as events:
                async for event in events:
                    story.hear(event, clock() - begun)
                    yield event
        except Exception as failure:
            story.failure = str(failure) or repr(failure)
            raise
        finally:
            story.duration_s = clock() - begun
            self.metrics.requests_in_flight -= 1
            self.metrics.book(story)
            logger.info("%s", story.line(self.model))

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """See Embedder."""
        clock, count = self.pipeline.clock, len(requests)
        begun, ending, reason = clock(), CLOSED, ""
        self.metrics.requests_in_flight += count
        try:
            pooled = await self.pooling.embed(requests)
            ending = POOLED
            return pooled
        except Exception as failure:
            ending, reason = FAILED, f" reason={str(failure)!r}"
            raise
        finally:
            tokens, took_s = sum(len(one.prompt) for one in requests), clock() - begun
            self.metrics.requests_in_flight -= count
            self.metrics.book_pooled(count, tokens, took_s, ending)
            logger.info(
                "request_id=%s endpoint=%s model=%s prompts=%d prompt_tokens=%d finish=%s "
                "total_s=%.4f%s",
                *(requests[0].request_id, endpoint.get(), self.model, count, tokens),
                *(ending, took_s, reason),
            )

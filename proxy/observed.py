"""The pipeline as the door sees it: each request is counted, timed and told in one line."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, replace

from api.generator import WHOLE, Event, Leg
from engine.request import Request
from proxy.metrics import ProxyMetrics
from proxy.pipeline import Pipeline
from proxy.story import NotedPolicy, Story

endpoint: ContextVar[str] = ContextVar("endpoint", default="-")
"""Which path the client called: it belongs to the context a request is answered in."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Observed:
    """A Generator that adds nothing to the pipeline's events and leaves nothing out."""

    pipeline: Pipeline
    metrics: ProxyMetrics
    model: str

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

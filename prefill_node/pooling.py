"""The pooling leg: a prompt is run and pooled, and its KV is not handed over."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from api.generator import FailedEvent, PooledEvent, PoolingEvent, PromptEvent, StageEvent
from engine.api import Admitted, Engine, StepResult
from engine.errors import EngineError
from engine.request import PoolingRequest, RequestId

RequestEvent = tuple[RequestId, PoolingEvent]


@dataclass(slots=True)
class PoolingWorker:
    """Owns every pooling request from `submit` until its vectors are reported."""

    engine: Engine
    clock: Callable[[], float]
    _since: dict[RequestId, float] = field(default_factory=dict)

    def submit(self, request: PoolingRequest, since: float) -> Sequence[RequestEvent]:
        """Queue a prompt that came at `since`."""
        try:
            self.engine.embed(request)
        except EngineError as error:
            failed = FailedEvent(str(error), retryable=False, param=error.param)
            return [(request.request_id, failed)]
        self._since[request.request_id] = since
        return []

    def abort(self, request_id: RequestId) -> None:
        """Stop it in any state; ids that have ended are ignored."""
        if self._since.pop(request_id, None) is not None:
            self.engine.release(request_id)

    def admit(self, admitted: Iterable[Admitted]) -> Iterator[RequestEvent]:
        """Report the requests that run from now on."""
        for one in admitted:
            rid = one.request_id
            if (since := self._since.get(rid)) is not None:
                self._since[rid] = now = self.clock()
                yield rid, PromptEvent(one.cached_tokens)
                yield rid, StageEvent("queue", now - since)

    def book(self, result: StepResult) -> Iterator[RequestEvent]:
        """The events of a batch's finished vectors."""
        for one in result.pooled:
            rid = one.request_id
            yield rid, StageEvent("pool", self.clock() - self._since.pop(rid))
            yield rid, PooledEvent(one.values, one.width)

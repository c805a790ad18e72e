"""One turn of a node's engine process: all kinds of leg over one engine. No sockets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from api.generator import Event, Leg, PooledEvent
from decode_node.worker import DecodeWorker
from engine.api import Engine, EngineLoad
from engine.request import PoolingRequest, Request, RequestId
from prefill_node.pooling import PoolingWorker
from prefill_node.worker import PrefillWorker

News = tuple[RequestId, Event | PooledEvent]


@dataclass(frozen=True, slots=True)
class _Early:
    """A leg whose grammar is not compiled yet, or whose prompt another node may know.

    It waits here, and nobody else does.
    """

    request: Request
    leg: Leg
    since: float


@dataclass(slots=True)
class NodeLoop:
    """`prepare` and `run`, again and again; what `prepare` tells need not wait for `run`.

    `idle` after a `run` says that there is nothing to compute: wait for a call, or for news
    of a transfer; not for long while somebody `is_early`.
    """

    engine: Engine
    prefill: PrefillWorker
    decode: DecodeWorker
    idle: bool = True
    pooling: PoolingWorker = field(init=False)
    _early: list["_Early"] = field(default_factory=list)
    _fetching: dict[RequestId, "_Early"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """What pools needs the engine and nothing of a transfer."""
        self.pooling = PoolingWorker(self.engine, self.prefill.clock)

    @property
    def load(self) -> EngineLoad:
        """The engine's, and what waits for it on this side of it."""
        load, waiting = self.engine.load, self.decode.num_waiting
        return replace(
            load,
            waiting=load.waiting + waiting + len(self._early) + len(self._fetching),
            running=load.running + self.decode.num_pulling,
        )

    @property
    def load_failures(self) -> Mapping[str, int]:
        """How often KV could not be used, by kind, since the start."""
        return self.decode.load_failures

    @property
    def is_early(self) -> bool:
        """Whether a leg waits for its grammar, or KV for another node or a disk.

        Then there has to be another `prepare` soon.
        """
        return bool(self._early or self._fetching) or self.engine.load.fetching > 0

    def submit(self, request: Request, leg: Leg, since: float) -> Sequence[News]:
        """Queue one leg that came at `since`; request ids are unique on this node for good."""
        if not self.engine.ready(request):
            self._early.append(_Early(request, leg, since))
            return []
        if leg.hold:
            if leg.cache is not None and self.decode.fetcher.begin(request, leg.cache):
                self._fetching[request.request_id] = _Early(request, leg, since)
                return []
            return self.prefill.submit(request, leg.outer_id, since)
        return self.decode.submit(request, leg, since)

    def pool(self, request: PoolingRequest, since: float) -> Sequence[News]:
        """Queue one prompt to be pooled; as `submit`."""
        return self.pooling.submit(request, since)

    def abort(self, request_id: RequestId) -> None:
        """Stop a leg in any state; ids that are over are fine."""
        for one in self._early:
            if one.request.request_id == request_id:
                self.decode.decline(one.leg)
        self._early = [one for one in self._early if one.request.request_id != request_id]
        if self._fetching.pop(request_id, None):
            self.decode.fetcher.abort(request_id)
        self.prefill.abort(request_id)
        self.decode.abort(request_id)
        self.pooling.abort(request_id)

    def prepare(self) -> Sequence[News]:
        """Take in what the transfers brought, and choose the next batch."""
        early, self._early = self._early, []
        news = [new for one in early for new in self.submit(one.request, one.leg, one.since)]
        news += [*self.prefill.collect(), *self.decode.collect(), *self._end_fetches()]
        admitted = self.engine.schedule()
        for worker in (self.prefill, self.decode, self.pooling):
            news += worker.admit(admitted)
        return news

    def _end_fetches(self) -> Iterator[News]:
        for fetched in self.decode.fetcher.collect():
            one = self._fetching.pop(RequestId(fetched.request_id))
            yield from self.prefill.submit(one.request, one.leg.outer_id, one.since, fetched)

    def run(self) -> Sequence[News]:
        """Run the batch."""
        begun = self.prefill.clock()
        result = self.engine.step()
        self.decode.fetcher.paced(result.num_tokens, self.prefill.clock() - begun)
        self.idle = result.num_tokens == 0
        told = self.prefill.book(result), self.decode.book(result), self.pooling.book(result)
        return [news for some in told for news in some]

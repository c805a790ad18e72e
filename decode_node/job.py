"""One job of a decode node before it runs: what it waits for, and which KV it needs."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.generator import FailedEvent, Leg, StageEvent
from api.node_logprobs import unpack
from engine.errors import EngineError
from engine.request import Logprobs, Request, first_token_digest, tokens_digest
from kv_transfer.api import Sealed
from kv_transfer.ticket import KvTicket


@dataclass(slots=True, eq=False)
class DecodeJob:
    """A job from `submit` until its KV has arrived."""

    request: Request
    ticket: KvTicket
    leg: Leg
    since: float  # when its leg arrived at the node's HTTP server
    held: bool = False  # the sink keeps the lease of its ticket alive
    aborted: bool = False

    def waited_stage(self, stage: str, now: float) -> StageEvent:
        """The stage of waiting since the job came."""
        return StageEvent(stage, now - self.since, at_s=now - self.since)


@dataclass(slots=True)
class StageClock:
    """The times of a request in the engine: when its leg came, and when this stage began."""

    came: float
    since: float

    def finish_stage(self, stage: str, now: float) -> StageEvent:
        """End the stage and begin the next one."""
        since, self.since = self.since, now
        return StageEvent(stage, now - since, at_s=now - self.came)


def is_kv_of(sealed: Sealed, request: Request) -> bool:
    """Whether the KV is that of exactly these tokens."""
    return sealed.num_tokens == len(request.tokens) and sealed.tokens_digest == tokens_digest(
        request
    )


def first_token(sealed: Sealed, request: Request) -> tuple[Sequence[int], tuple[Logprobs, ...]]:
    """Prefill's token, if it was shaped as this request asks; otherwise none.

    None, too, if log-probabilities are requested that did not come with it.
    """
    if sealed.first_token_digest != first_token_digest(request):
        return [], ()
    asked = request.sampling.logprobs
    told = () if asked is None else unpack(sealed.first_logprobs, sealed.first_token, asked)
    return ([sealed.first_token] if told or asked is None else []), told


def urgency(job: DecodeJob) -> tuple[int, float]:
    """Sort key: lower goes first."""
    return job.request.priority, job.since - job.leg.waited_s


def refused(error: EngineError) -> FailedEvent:
    """The end of a job that no engine takes."""
    return FailedEvent(str(error), retryable=False, param=error.param)

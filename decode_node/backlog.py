"""The jobs of a decode node that wait for a seat and blocks, in the order of their turns."""

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from decode_node.job import DecodeJob, urgency
from engine.request import RequestId
from kv_transfer.ticket import KvTicket


@dataclass(slots=True)
class Backlog:
    """By urgency, then by age. Thousands may wait, and their clients leave at once: neither a
    step nor an abort looks at every job.
    """

    _jobs: list[DecodeJob] = field(default_factory=list)
    _by_request: dict[RequestId, DecodeJob] = field(default_factory=dict)
    _by_ticket: defaultdict[str, dict[RequestId, DecodeJob]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _not_held: dict[RequestId, DecodeJob] = field(default_factory=dict)
    _oldest: float = math.inf  # no job that can run elsewhere came earlier

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def __iter__(self) -> Iterator[DecodeJob]:
        """The jobs as of now, in order; they may be removed meanwhile."""
        return iter(tuple(self._jobs))

    def add(self, job: DecodeJob) -> None:
        """Put a job behind those that are as urgent and as old."""
        insort(self._jobs, job, key=urgency)
        self._by_request[job.request.request_id] = job
        self._by_ticket[job.ticket.ticket_id][job.request.request_id] = job
        self._not_held[job.request.request_id] = job
        if job.leg.elsewhere:
            self._oldest = min(self._oldest, job.since)

    def find(self, request_id: RequestId) -> DecodeJob | None:
        """The job of this request, if it waits here."""
        return self._by_request.get(request_id)

    def wants(self, ticket: KvTicket) -> bool:
        """Whether a job waits here with this ticket."""
        return ticket.ticket_id in self._by_ticket

    def hold_again(self, ticket: KvTicket) -> None:
        """The jobs with this ticket count as not held."""
        for request_id, job in self._by_ticket.get(ticket.ticket_id, {}).items():
            job.held = False
            self._not_held[request_id] = job

    def remove(self, job: DecodeJob) -> None:
        """Take a job out; raises KeyError if it does not wait here."""
        del self._by_request[job.request.request_id]
        self._not_held.pop(job.request.request_id, None)
        self._jobs.remove(job)
        beside = self._by_ticket[job.ticket.ticket_id]
        del beside[job.request.request_id]
        if not beside:
            del self._by_ticket[job.ticket.ticket_id]

    def not_held(self) -> list[DecodeJob]:
        """The jobs whose tickets are not held yet, as of now."""
        for request_id in [name for name, job in self._not_held.items() if job.held]:
            del self._not_held[request_id]
        return list(self._not_held.values())

    def late(self, longest_s: float, *, now: float) -> list[DecodeJob]:
        """Those that have waited here for this long and can run elsewhere, in order."""
        if now - self._oldest < longest_s:
            return []
        movable = [job for job in self._jobs if job.leg.elsewhere]
        late = [job for job in movable if now - job.since >= longest_s]
        waiting = (job.since for job in movable if now - job.since < longest_s)
        self._oldest = min(waiting, default=math.inf)
        return late

"""The jobs of a decode node that wait for a seat and blocks, in the order of their turns."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from decode_node.job import DecodeJob, urgency
from engine.request import RequestId


@dataclass(slots=True)
class Backlog:
    """By urgency, then by age; a job is found by its request without a search.

    Thousands of clients may leave at once, so an abort must not look at every job that waits.
    """

    _jobs: list[DecodeJob] = field(default_factory=list)
    _by_request: dict[RequestId, DecodeJob] = field(default_factory=dict)

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

    def find(self, request_id: RequestId) -> DecodeJob | None:
        """The job of this request, if it waits here."""
        return self._by_request.get(request_id)

    def remove(self, job: DecodeJob) -> None:
        """Take a job out; raises KeyError if it does not wait here."""
        del self._by_request[job.request.request_id]
        self._jobs.remove(job)

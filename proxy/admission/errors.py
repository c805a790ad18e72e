"""Why a request is refused or ended; each error says when to retry, if that helps.

StreamFailed (api)
└── AdmissionRefused            503  `reason` is one word for the metrics
    ├── QueueFull                    the queue is full
    ├── ModelQueueFull               the part of it that waits for one model's nodes is full
    ├── KeyQueueFull            429  the key's own part of it is full
    ├── RateLimited             429  the key has used up its share of this minute
    │   ├── RequestsPerMinute
    │   └── TokensPerMinute
    └── QueueWaitTooLong             its deadline would pass in the queue, or has passed
"""

from math import ceil

from api.generator import StreamFailed

LONGEST_S = 120


class AdmissionRefused(StreamFailed):
    """Base of this package's errors."""

    status = 503
    reason = "refused"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if retry_after_s is not None:
            self.retry_after_s = max(1, min(LONGEST_S, ceil(retry_after_s)))


class QueueFull(AdmissionRefused):
    """The queue is full."""

    reason = "queue_full"


class ModelQueueFull(AdmissionRefused):
    """The queue for this model's nodes is full."""

    reason = "model_queue_full"


class KeyQueueFull(AdmissionRefused):
    """The queue of this key is full."""

    status = 429
    reason = "key_queue_full"


class RateLimited(AdmissionRefused):
    """The key has used up its minute; `wait_s` is exact."""

    status = 429

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, ceil(wait_s))


class RequestsPerMinute(RateLimited):
    """The key's requests of this minute are used up."""

    reason = "requests_per_minute"


class TokensPerMinute(RateLimited):
    """The key's tokens of this minute, of prompts and answers together, are used up."""

    reason = "tokens_per_minute"


class QueueWaitTooLong(AdmissionRefused):
    """It would wait, or has waited, past its deadline."""

    reason = "deadline"

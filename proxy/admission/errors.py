"""Why a request is not let in, or not let go on; each says when to come back, if that helps.

StreamFailed (api)
└── AdmissionRefused            503  `reason` is one word for the metrics
    ├── QueueFull                    the queue is full
    ├── ModelQueueFull               the part of it that waits for one model's nodes is
    ├── KeyQueueFull            429  the key's own part of it is
    ├── RateLimited             429  the key has had its part of this minute
    │   ├── RequestsPerMinute
    │   └── TokensPerMinute
    └── QueueWaitTooLong             its deadline would pass in the queue, or has
"""

from math import ceil

from api.generator import StreamFailed

LONGEST_S = 120


class AdmissionRefused(StreamFailed):
    """Base of the room's errors."""

    status = 503
    reason = "refused"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        if retry_after_s is not None:
            self.retry_after_s = max(1, min(LONGEST_S, ceil(retry_after_s)))


class QueueFull(AdmissionRefused):
    """Nobody may stand in line any more."""

    reason = "queue_full"


class ModelQueueFull(AdmissionRefused):
    """Nobody may who waits for this model's nodes; others may."""

    reason = "model_queue_full"


class KeyQueueFull(AdmissionRefused):
    """Of this key nobody may; others may."""

    status = 429
    reason = "key_queue_full"


class RateLimited(AdmissionRefused):
    """The key has begun as much in the last minute as it may; `wait_s` is no guess."""

    status = 429

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1, ceil(wait_s))


class RequestsPerMinute(RateLimited):
    """Of requests."""

    reason = "requests_per_minute"


class TokensPerMinute(RateLimited):
    """Of tokens, of prompts and answers together."""

    reason = "tokens_per_minute"


class QueueWaitTooLong(AdmissionRefused):
    """It would wait, or has waited, longer than it has time."""

    reason = "deadline"

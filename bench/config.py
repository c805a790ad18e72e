"""The settings of `pdserve bench`; its command line is generated from them."""

from dataclasses import dataclass
from typing import Literal

from discovery.checks import at_least

COUNTS = ("runs", "requests", "concurrency", "prompt_tokens", "output_tokens", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is asked, of whom."""

    url: str | None = None
    """An endpoint that runs. Default: a cluster of two nodes and --model is started."""
    model: str | None = None
    """What the endpoint calls its model. Without --url: a checkpoint to start it with."""
    api_key: tuple[str, ...] = ()
    """A client's key, for an endpoint that wants one; the first is used."""
    runs: int = 3
    """How often it is measured; the median counts."""
    requests: int = 256
    """How many requests one run has."""
    concurrency: int = 8
    """How many are under way at any time."""
    prompt_tokens: int = 256
    """Length of each prompt; all are different."""
    output_tokens: int = 32
    """Length of each answer."""
    vocabulary: int = 8000
    """Prompts are of token ids below this."""
    kv_connector: Literal["nixl", "tcp"] = "nixl"
    """How KV travels in the cluster that is started."""

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        for name in COUNTS:
            at_least(2 if name == "vocabulary" else 1, name, getattr(self, name))
        if self.url is not None and self.model is None:
            raise ValueError("--url wants --model beside it")

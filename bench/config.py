"""The settings of `pdserve bench`; its command line is generated from them."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from discovery.checks import at_least, not_empty

COUNTS = ("runs", "requests", "concurrency", "prompt_tokens", "output_tokens", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is asked, of whom."""

    url: str | None = None
    """URL of a running endpoint. Default: start a cluster of two nodes with --model."""
    model: str | None = None
    """The name of the model at --url. Without --url: the checkpoint to start a cluster with."""
    api_key: tuple[str, ...] = ()
    """API key for the endpoint, if it needs one; the first is used."""
    runs: int = 3
    """How many runs, after 16 requests to warm up; the median counts."""
    requests: int = 256
    """How many requests in each run."""
    concurrency: int = 8
    """How many requests are in flight at any time."""
    prompt_tokens: int = 256
    """Tokens of each prompt; all prompts differ."""
    output_tokens: int = 32
    """Tokens of each answer."""
    vocabulary: int = 8000
    """Prompts consist of token ids below this."""
    kv_connector: Literal["nixl", "tcp"] = "nixl"
    """How KV is transferred in the cluster that is started."""

    def __post_init__(self) -> None:
        """Refuse what measures nothing."""
        for name in COUNTS:
            at_least(2 if name == "vocabulary" else 1, name, getattr(self, name))
        not_empty(self)
        if not all(key.isprintable() for key in self.api_key):
            raise ValueError("--api-key has to be printable: it becomes part of a header")
        if self.url is not None and self.model is None:
            raise ValueError("--url wants --model beside it")
        if self.url is not None:
            base_url(self.url)


def base_url(url: str) -> str:
    """The URL that `v1/completions` is relative to; raises ValueError if it is none of HTTP."""
    full = url if "://" in url else f"http://{url}"
    if not _is_base(full):
        raise ValueError(f"--url {url} is not the base URL of an HTTP server")
    return full.rstrip("/").removesuffix("/v1").rstrip("/") + "/"


def _is_base(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False
    return named and parts.scheme in ("http", "https") and not parts.query + parts.fragment

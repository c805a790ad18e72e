"""Tokenizers and chat templates of models, by digest: fetched once, from any node with them.

A fetch or load that fails is retried with growing pauses; files that are malformed are not.
"""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from api.defaults import AUTO, OPENAI, Defaults, load_defaults
from api.errors import TooBusy
from api.pooling.model_config import load_pooling
from api.text.tokenizing import TextCodec, load_text_codec
from api.text_files import TOKENIZER, BadParcel, TextFilesError, unpack, write_files
from api.threads import run_in_thread
from engine.pooling.config import PoolingConfig
from proxy.models.cache import ParcelCache
from proxy.models.fetching import Fetcher, NotFetched

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LOADING_S = 120.0
MOST_TEXTS = 16
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelText:
    """The tokenizer, chat template, sampling defaults and pooling of a model."""

    codec: TextCodec
    defaults: Defaults = OPENAI
    pooling: PoolingConfig | None = None


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Why a text was not loaded; `try_at` is the time of the next try, None: never."""

    reason: str
    try_at: float | None
    pause_s: float = FIRST_PAUSE_S


@dataclass(slots=True)
class ModelTextStore:
    """The loaded texts, and the failures of others.

    `changes` counts both. The caller decides when to call `fetch`; at most one call may run for
    a digest.
    """

    fetcher: Fetcher
    cache: ParcelCache | None = None
    generation_config: str = AUTO
    read: "Callable[[str, bytes, str], ModelText]" = field(default_factory=lambda: read_text)
    changes: int = 0
    _texts: dict[str, ModelText] = field(default_factory=dict)
    _failures: dict[str, LoadFailure] = field(default_factory=dict)

    def find(self, digests: Sequence[str]) -> ModelText | None:
        """The text of the first of these digests that is loaded."""
        return next((self._texts[one] for one in digests if one in self._texts), None)

    def failure(self, digest: str) -> LoadFailure | None:
        """The last failure, if it is not loaded."""
        return self._failures.get(digest)

    def due(self, digest: str, now: float) -> bool:
        """Whether it is not loaded and should be tried now."""
        if digest in self._texts:
            return False
        failure = self._failures.get(digest)
        return failure is None or (failure.try_at is not None and failure.try_at <= now)

    def forget(self, kept: frozenset[str]) -> None:
        """Drop the oldest texts that are not in `kept`, if there are too many."""
        spare = [one for one in self._texts if one not in kept]
        for digest in spare[: max(0, len(self._texts) - MOST_TEXTS)]:
            del self._texts[digest]
        for digest in [one for one in self._failures if one not in kept]:
            del self._failures[digest]

    async def fetch(self, digest: str, addresses: Sequence[str], *, now: float) -> None:
        """Fetch and load it; `find` or `failure` has the result."""
        try:
            text = await self._load(digest, await self._fetch(digest, addresses))
        except TextFilesError as error:
            self._fail(digest, LoadFailure(str(error), None))
        except (NotFetched, TooBusy, OSError) as error:  # a TimeoutError is an OSError
            reason = str(error) or f"not loaded within {LOADING_S:.0f} s"
            before = self._failures.get(digest)
            pause_s = min(2 * before.pause_s, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
            self._fail(digest, LoadFailure(reason, now + pause_s, pause_s))
        else:
            self._failures.pop(digest, None)
            self._texts[digest] = text
            self.changes += 1
            logger.info("loaded the text files %s", digest)

    def _fail(self, digest: str, failure: LoadFailure) -> None:
        self._failures[digest] = failure
        self.changes += 1
        logger.warning("text files %s: %s", digest, failure.reason)

    async def _fetch(self, digest: str, addresses: Sequence[str]) -> bytes:
        """From the disk cache, or from the first of these nodes that has it."""
        cache, reason = self.cache, "no node gives them"
        if cache and (data := await run_in_thread(partial(cache.find, digest))):
            return data
        for address in addresses:
            try:
                data = await self.fetcher.fetch(address, digest)
            except (NotFetched, TextFilesError) as error:
                reason = str(error)
                logger.warning("text files %s: %s", digest, reason)
                continue
            if cache:
                await run_in_thread(partial(cache.keep, digest, data))
            return data
        raise NotFetched(reason)

    async def _load(self, digest: str, data: bytes) -> ModelText:
        """Load in a thread: a large vocabulary takes seconds."""
        async with asyncio.timeout(LOADING_S):
            return await run_in_thread(partial(self.read, digest, data, self.generation_config))


def read_text(digest: str, data: bytes, generation_config: str) -> ModelText:
    """Read a parcel's files; raises BadParcel if they are malformed.

    Raises OSError if the system lacks a resource.
    """
    files = unpack(data, digest)
    if TOKENIZER not in files:
        raise BadParcel(f"it has no {TOKENIZER}")
    with tempfile.TemporaryDirectory(prefix="pdserve-text-") as name:
        folder = Path(name)
        write_files(files, folder)
        with _explained("no tokenizer can be made of it", folder):
            codec = load_text_codec(folder)
        with _explained("its defaults cannot be used", folder):
            defaults = load_defaults(generation_config, name)
        return ModelText(codec, defaults, load_pooling(name))


@contextmanager
def _explained(what: str, folder: Path) -> Iterator[None]:
    """Turn errors into BadParcel with the reason, except those of missing resources."""
    try:
        yield
    except Exception as error:  # libraries that read a tokenizer.json raise plain Exception
        if _of_the_system(error):
            raise
        why = " ".join(str(error).replace(str(folder), "it").split())
        raise BadParcel(f"{what}: {why}") from error


def _of_the_system(error: BaseException) -> bool:
    """Whether it is an OSError of the system; those about a file's contents have no errno."""
    inner = error.__cause__ or error
    return isinstance(inner, OSError) and inner.errno is not None

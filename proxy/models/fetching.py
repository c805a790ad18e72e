"""Fetches tokenizer and chat template files from nodes, over HTTP."""

from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from api.text_files import LARGEST, ROUTE, BadParcel, ParcelTooLarge, digest_of
from discovery.signed_calls import Signing

OK = 200
PATIENCE_S = 60.0
SILENCE_S = 5.0


class NotFetched(Exception):
    """This node did not provide the parcel; another may."""


class Fetcher(Protocol):
    """How a parcel is fetched from a node."""

    async def fetch(self, address: str, digest: str) -> bytes:
        """The parcel with this digest; raises NotFetched, BadParcel, ParcelTooLarge."""


@dataclass(frozen=True, slots=True)
class HttpFetcher:
    """Over HTTP; each call is signed if the cluster has a key."""

    session: aiohttp.ClientSession
    signing: Signing = field(default_factory=Signing)
    patience_s: float = PATIENCE_S
    silence_s: float = SILENCE_S

    async def fetch(self, address: str, digest: str) -> bytes:
        """See Fetcher. Never reads more bytes than a parcel may have."""
        signed, timeout = self.signing.headers("GET", ROUTE), self._timeout()
        url = f"http://{address}{ROUTE}"
        try:
            called = self.session.get(
                url, headers=signed, timeout=timeout, allow_redirects=False
            )
            async with called as answer:
                if answer.status != OK:
                    raise NotFetched(f"{address} answered with status {answer.status}")
                data = await _read(answer, address)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = str(error) or "silent for too long"
            raise NotFetched(f"{address}: {why}") from error
        if (found := digest_of(data)) != digest:
            raise BadParcel(f"{address} gave text files {found} instead of {digest}")
        return data

    def _timeout(self) -> aiohttp.ClientTimeout:
        patience_s, silence_s = self.patience_s, self.silence_s
        return aiohttp.ClientTimeout(
            total=patience_s, sock_connect=silence_s, sock_read=silence_s
        )


async def _read(answer: aiohttp.ClientResponse, address: str) -> bytes:
    parts, size = list[bytes](), 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > LARGEST:
            raise ParcelTooLarge(f"the text files of {address} are larger than {LARGEST} bytes")
        parts.append(part)
    return b"".join(parts)

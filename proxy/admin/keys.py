"""Named API keys with limits of their own, from a file or from the settings.

A key is looked up by its SHA-256 digest, so that timing says nothing about how much of a guess
was right, and a file need not contain the key itself.
"""

import hmac
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta

from api.wire import UNREADABLE, explained
from proxy.admission.limits import ApiCaller, KeyLimits

Name = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Secret = Annotated[str, Meta(pattern="^[!-~]{1,512}$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
PATTERNS = {
    "name": "1 to 64 letters, digits, dots, dashes or underscores, of which the first is a "
    "letter or a digit",
    "key": "1 to 512 printable ASCII characters without spaces",
    "sha256": "64 hexadecimal digits in lower case",
}
"""What a field has to be, where msgspec would show a regular expression."""
ADMIN = "admin"
SHARED = "max_requests", "max_tokens", "max_queued"  # a minute's are: proxy/workers/rates.py


class MalformedKeys(ValueError):
    """The file is not a list of keys, or the text does not contain a key."""


class KeyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One key of a file: the key itself, or its digest in hexadecimal."""

    name: Name
    key: Secret | None = None
    sha256: Digest | None = None
    admin: bool = False
    limits: KeyLimits | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: Annotated[Sequence[KeyEntry], Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class Key:
    """A key's caller and its digest, without the key."""

    caller: ApiCaller
    digest: bytes = field(repr=False)
    admin: bool = False


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The keys of clients and those of admins; one key may be both."""

    clients: Mapping[bytes, Key] = field(default_factory=dict)
    admins: Mapping[bytes, Key] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[Key]) -> "KeyRing":
        """Index the keys; raises MalformedKeys if two of the same kind are equal."""
        clients, admins = dict[bytes, Key](), dict[bytes, Key]()
        for key in keys:
            before = (admins if key.admin else clients).setdefault(key.digest, key)
            if before is not key:
                names = f"{before.caller.name} and {key.caller.name}"
                raise MalformedKeys(f"keys: {names} are the same key")
        return cls(clients, admins)

    @classmethod
    def given(cls, clients: Sequence[str], admin: str | None) -> "KeyRing":
        """The keys of the settings, which have no names or limits of their own."""
        numbered = enumerate(dict.fromkeys(clients), start=1)
        keys = [Key(ApiCaller(f"api-key-{number}"), _digest(key)) for number, key in numbered]
        admins = [] if admin is None else [Key(ApiCaller(ADMIN), _digest(admin), admin=True)]
        return cls.of([*keys, *admins])

    @property
    def names(self) -> frozenset[str]:
        """The names under which clients are counted, which no other key may have."""
        return frozenset(key.caller.name for key in self.clients.values())

    def client(self, given: str) -> ApiCaller | None:
        """The caller with this key, or None."""
        return _find(self.clients, given)

    def admin(self, given: str) -> ApiCaller | None:
        """The admin with this key, or None."""
        return _find(self.admins, given)


def read_keys(
    data: bytes, *, is_json: bool, parts: int = 1, taken: frozenset[str] = frozenset()
) -> KeyRing:
    """Read the keys of a file; each of `parts` processes gets its part of a key's limits.

    No key may have a name that is `taken`. Raises MalformedKeys, naming the field.
    """
    try:
        plain = msgspec.json.decode(data) if is_json else tomllib.loads(data.decode())
        entries = msgspec.convert(plain, _File).keys
    except (tomllib.TOMLDecodeError, *UNREADABLE) as error:
        raise MalformedKeys(_why(error)) from error
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise MalformedKeys(f"keys: there are two of the name {twice}")
    if theirs := next((name for name in names if name in taken), None):
        raise MalformedKeys(f"keys: {theirs} is the name of one that --api-key gives")
    return KeyRing.of(_key(entry, parts) for entry in entries)


def _why(error: Exception) -> str:
    told = explained(error)
    name = (told.param or "").rpartition(".")[2]
    if " matching regex " in str(told) and name in PATTERNS:
        return f"{told.param}: expected {PATTERNS[name]}"
    return str(told)


def _find(keys: Mapping[bytes, Key], given: str) -> ApiCaller | None:
    digest = _digest(given)
    key = keys.get(digest)
    return key.caller if key and hmac.compare_digest(key.digest, digest) else None


def _key(entry: KeyEntry, parts: int) -> Key:
    if (entry.key is None) is (entry.sha256 is None):
        raise MalformedKeys(f"keys: {entry.name} needs either key or sha256")
    digest = _digest(entry.key) if entry.key else bytes.fromhex(entry.sha256 or "")
    return Key(ApiCaller(entry.name, _part(entry.limits, parts)), digest, entry.admin)


def _part(limits: KeyLimits | None, parts: int) -> KeyLimits | None:
    if limits is None or parts == 1:
        return limits
    shared = {name: getattr(limits, name) for name in SHARED}
    halves = {name: -(-most // parts) for name, most in shared.items() if most is not None}
    return msgspec.structs.replace(limits, **halves)


def _digest(key: str) -> bytes:
    return sha256(key.encode(errors="surrogatepass")).digest()

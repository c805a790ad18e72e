"""Who may call what. Pure; keys are compared in constant time, and never logged."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2s

from api.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/metrics"})
ADMIN_PATHS = ("/instances/", "/instances")
TIMELINES = "/requests/"  # admins may see all, clients their own
BEARER = "bearer "
OWNER_BYTES = 16


class Unauthorized(ApiError):
    """No key, or none of ours."""

    status = 401


class Forbidden(ApiError):
    """Not the administrator's key."""

    status = 403


@dataclass(frozen=True, slots=True)
class Guard:
    """Without keys for clients the door is open; without one for admins theirs is shut."""

    api_keys: Sequence[str] = ()
    admin_key: str | None = None

    def check(self, path: str, authorization: str | None, admin: str | None) -> None:
        """Raises Unauthorized or Forbidden."""
        if path == ADMIN_PATHS[1] or path.startswith(ADMIN_PATHS[0]):
            self._check_admin(admin)
        elif path.startswith(TIMELINES):
            self.sees(authorization, admin)
        elif self.api_keys and path not in OPEN_PATHS:
            self._check_client(authorization or "")

    def sees(self, authorization: str | None, admin: str | None) -> str | None:
        """Whose requests this one may look at; None: anybody's, as an admin, or where no client
        has a key. Raises Unauthorized.
        """
        if not self.api_keys or self._is_admin(admin):
            return None
        self._check_client(authorization or "")
        return self.owner(authorization)

    def owner(self, authorization: str | None) -> str:
        """A name for whoever has this key, which does not tell the key; "" without keys."""
        if not self.api_keys:
            return ""
        key = (authorization or "")[len(BEARER) :].strip()
        return blake2s(key.encode(), digest_size=OWNER_BYTES).hexdigest()

    def _is_admin(self, given: str | None) -> bool:
        return bool(given and self.admin_key and _same(given, self.admin_key))

    def _check_admin(self, given: str | None) -> None:
        if self.admin_key is None:
            raise Forbidden("Forbidden: the proxy was started without ADMIN_API_KEY.")
        if given is None or not _same(given, self.admin_key):
            raise Forbidden("Forbidden: Invalid API Key.")

    def _check_client(self, authorization: str) -> None:
        given = authorization[len(BEARER) :].strip()
        bearer = authorization[: len(BEARER)].lower() == BEARER
        fits = [_same(given, key) for key in self.api_keys]
        if not bearer or not any(fits):
            raise Unauthorized("Unauthorized")


def _same(given: str, key: str) -> bool:
    return hmac.compare_digest(given.encode(), key.encode())

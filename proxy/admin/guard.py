"""Who may call what. Pure; keys are compared in constant time, and never logged."""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from api.errors import ApiError

OPEN_PATHS = frozenset({"/health", "/metrics"})
ADMIN_PATHS = "/instances/"
BEARER = "bearer "


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
        if path.startswith(ADMIN_PATHS):
            self._check_admin(admin)
        elif self.api_keys and path not in OPEN_PATHS:
            self._check_client(authorization or "")

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

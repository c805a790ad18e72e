"""Access control: which key may call which path. Pure; keys are never logged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from api.errors import ApiError
from api.messages.errors import is_of_messages
from api.models import is_of_models
from proxy.admin.keys import KeyRing
from proxy.admission.limits import ApiCaller

HEALTH_PATHS = {"/health", "/healthcheck", "/liveness", "/readiness", "/metrics"}
OPEN_PATHS = frozenset({*HEALTH_PATHS, "/openapi.json", "/docs"})
ADMIN_PATHS = ("/instances", "/workers")
STATUS_PATHS = frozenset({"/status", "/get_loads", "/metrics/targets"})  # clients, admins too
OPERATORS_PATHS = STATUS_PATHS | {"/metrics"}
TIMELINES = "/requests/"  # admins may see all, clients their own
BEARER = "bearer "
WANTED = "Unauthorized: this needs a client's key, as the header Authorization: Bearer KEY."
WANTED_OF_EITHER = f"{WANTED[:-1]}, or x-api-key: KEY."
NOBODY = ApiCaller()


class Unauthorized(ApiError):
    """No key, or an unknown one."""

    status = 401


class Forbidden(ApiError):
    """Not an administrator's key."""

    status = 403


@dataclass(slots=True)
class Guard:
    """Without client keys every client may call; without an admin key no admin may.

    `listed` are the keys of --api-key-file, which may be replaced at any time; with a file
    clients always need a key.
    """

    api_keys: Sequence[str] = ()
    admin_key: str | None = None
    listed: KeyRing | None = None
    _given: KeyRing = field(init=False)

    def __post_init__(self) -> None:
        """Index the keys of the settings, which do not change."""
        self._given = KeyRing.given(self.api_keys, self.admin_key)

    def check(self, path: str, authorization: str | None, key: str | None) -> ApiCaller:
        """The caller; raises Unauthorized or Forbidden.

        `key` comes from a separate header and is an admin's; for messages and models it may
        also be a client's.
        """
        if is_for_admins(path):
            return self._check_admin(key)
        if _is_status(path):
            return self._admin(key) or self._check_client(authorization)
        if is_of_messages(path) or is_of_models(path):
            return self._check_client(authorization, key, WANTED_OF_EITHER)
        return NOBODY if path in OPEN_PATHS else self._check_client(authorization)

    def sees(self, authorization: str | None, admin: str | None) -> str | None:
        """The owner whose requests this caller may see.

        None: anybody's, for an admin, or if clients have no keys. Raises Unauthorized.
        """
        if not self._asks or self._admin(admin):
            return None
        return self._check_client(authorization).name

    def audits(self, path: str, admin: str | None) -> bool:
        """Whether a call is an administrator's, allowed or not: the path needs an admin's key,
        or has one although a client's key would suffice.
        """
        return is_for_admins(path) or (_is_status(path) and self._admin(admin) is not None)

    @property
    def names(self) -> frozenset[str]:
        """The names under which keys of the settings are counted."""
        return self._given.names

    @property
    def _asks(self) -> bool:
        """Whether clients need a key."""
        return bool(self.api_keys) or self.listed is not None

    @property
    def _rings(self) -> Iterator[KeyRing]:
        """If a key is in both rings, the file's name and limits count."""
        if self.listed is not None:
            yield self.listed
        yield self._given

    def _admin(self, given: str | None) -> ApiCaller | None:
        found = (ring.admin(given) for ring in self._rings if given)
        return next((who for who in found if who), None)

    def _client(self, given: str | None) -> ApiCaller | None:
        found = (ring.client(given) for ring in self._rings if given)
        return next((who for who in found if who), None)

    def _check_admin(self, given: str | None) -> ApiCaller:
        if not any(ring.admins for ring in self._rings):
            raise Forbidden("Forbidden: the proxy was started without ADMIN_API_KEY.")
        if (who := self._admin(given)) is None:
            raise Forbidden("Forbidden: Invalid API Key.")
        return who

    def _check_client(
        self, authorization: str | None, key: str | None = None, wanted: str = WANTED
    ) -> ApiCaller:
        """Check either header, if both are present."""
        if not self._asks:
            return NOBODY
        if (who := self._client(_bearer(authorization)) or self._client(key)) is None:
            raise Unauthorized(wanted)
        return who


def _bearer(authorization: str | None) -> str | None:
    if authorization is None or authorization[: len(BEARER)].lower() != BEARER:
        return None
    return authorization[len(BEARER) :].strip()


def _is_status(path: str) -> bool:
    return path.startswith(TIMELINES) or path in STATUS_PATHS


def is_for_admins(path: str) -> bool:
    """Whether this path needs an administrator's key."""
    return any(path == one or path.startswith(f"{one}/") for one in ADMIN_PATHS)


def is_for_clients(path: str) -> bool:
    """Whether this path is of use to clients, not only to operators and their tools."""
    return not is_for_admins(path) and path not in OPERATORS_PATHS

"""The proxy's TLS certificate, which can be replaced while it serves."""

import ssl
from dataclasses import dataclass
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files; without `keyfile` the key is in `certfile`.

    With `ca_certs`, clients must present a certificate signed by one of those.
    """

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of all files."""
        return [path for path in (self.certfile, self.keyfile, self.ca_certs) if path]

    def load(self, context: "RenewedContext | None" = None) -> str:
        """Use the files for new connections; raises OSError, and then changes nothing.

        A certificate and a key of which only one is new do not match.
        """
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            fresh.load_cert_chain(self.certfile, self.keyfile, _refuse_password)
        except ssl.SSLError as error:
            if error.reason is None:  # it names neither what is missing nor where
                raise OSError(self._missing_part()) from error
            raise
        if self.ca_certs:
            fresh.verify_mode = ssl.CERT_REQUIRED
            fresh.load_verify_locations(self.ca_certs)
        if context is not None:
            context.latest = fresh
        return self.certfile

    def _missing_part(self) -> str:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.certfile)
        except ssl.SSLError:
            return "--ssl-certfile has no certificate (PEM)"
        if self.keyfile:
            return "--ssl-keyfile has no private key (PEM)"
        return "--ssl-certfile has no private key (PEM), and there is no --ssl-keyfile"


class RenewedContext(ssl.SSLContext):
    """A server's context; each new connection is wrapped by `latest`, made of the latest files.

    A context that is in use cannot forget an authority, nor the sessions of its clients.
    """

    latest: ssl.SSLContext

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401
        """See ssl.SSLContext; the event loop calls it for each connection."""
        return self.latest.wrap_bio(*given, **named)


def _refuse_password() -> NoReturn:
    """Called for a key with a password. OpenSSL would ask for it at the terminal and wait, also
    while the proxy serves.
    """
    raise OSError("the key has a password; --ssl-keyfile has to have none")

"""The proxy's TLS certificate, which can be replaced while it serves."""

import ssl
from dataclasses import dataclass
from typing import Any, NoReturn

SERVER_FLAGS, AUTHORITIES = ("--ssl-certfile", "--ssl-keyfile"), "--ssl-ca-certs"


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
        load_pair(fresh, self.certfile, self.keyfile, SERVER_FLAGS)
        if self.ca_certs:
            fresh.verify_mode = ssl.CERT_REQUIRED
            _load_authorities(fresh, self.ca_certs, AUTHORITIES)
        if context is not None:
            context.latest = fresh
        return self.certfile


class RenewedContext(ssl.SSLContext):
    """A server's context; each new connection is wrapped by `latest`, made of the latest files.

    A context that is in use cannot forget an authority, nor the sessions of its clients.
    """

    latest: ssl.SSLContext

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401
        """See ssl.SSLContext; the event loop calls it for each connection."""
        return self.latest.wrap_bio(*given, **named)


def load_pair(
    context: ssl.SSLContext, certfile: str, keyfile: str | None, flags: tuple[str, str]
) -> None:
    """Load a certificate and its key; raises OSError that names the file by its flag."""
    flag, key_flag = flags
    _must_open(flag, certfile)
    if keyfile is not None:
        _must_open(key_flag, keyfile)
    holder = f"{flag} {certfile}" if keyfile is None else f"{key_flag} {keyfile}"

    def refuse_password() -> NoReturn:
        """OpenSSL would ask for it at the terminal and wait, also while the proxy serves."""
        raise OSError(f"{holder}: the key has a password, and has to have none")

    try:
        context.load_cert_chain(certfile, keyfile, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise OSError(f"{holder}: the key is not that of the certificate") from error
        _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certfile, flag)
        if error.reason is None:  # OpenSSL names neither what is missing nor where
            elsewhere = f", and there is no {key_flag}" if keyfile is None else ""
            raise OSError(f"{holder} has no private key (PEM){elsewhere}") from error
        raise OSError(f"{holder}: {error}") from error


def _load_authorities(context: ssl.SSLContext, path: str, flag: str) -> None:
    """Trust the certificates of a file; raises OSError that names it by its flag."""
    _must_open(flag, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise OSError(f"{flag} {path} has no certificate (PEM)") from error


def _must_open(flag: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise OSError(f"{flag} {path}: {error.strerror}") from error

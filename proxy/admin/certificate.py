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

    @property
    def options(self) -> dict[str, Any]:
        """The certificate's options for uvicorn."""
        asked = ssl.CERT_REQUIRED if self.ca_certs else ssl.CERT_NONE
        return {
            "ssl_certfile": self.certfile,
            "ssl_keyfile": self.keyfile,
            "ssl_ca_certs": self.ca_certs,
            "ssl_cert_reqs": asked,
        }

    def load(self, context: ssl.SSLContext | None = None) -> str:
        """Use the files for new connections; raises OSError, and then changes nothing.

        Everything is first tried in a separate context: a certificate and a key of which only
        one is new do not match.
        """
        for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            if one is not None:
                one.load_cert_chain(self.certfile, self.keyfile, _refuse_password)
                if self.ca_certs:
                    one.load_verify_locations(self.ca_certs)
        return self.certfile


def _refuse_password() -> NoReturn:
    """Called for a key with a password. OpenSSL would ask for it at the terminal and wait, also
    while the proxy serves.
    """
    raise OSError("the key has a password; --ssl-keyfile has to have none")

"""The proxy's TLS certificate, which can be replaced while it serves."""

import ssl
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files; without `keyfile` the key is in `certfile`.

    With `ca_certs` clients have to show a certificate that one of those has signed.
    """

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None

    @property
    def paths(self) -> list[str]:
        """All its files."""
        return [path for path in (self.certfile, self.keyfile, self.ca_certs) if path]

    @property
    def options(self) -> dict[str, Any]:
        """What uvicorn is told."""
        asked = ssl.CERT_REQUIRED if self.ca_certs else ssl.CERT_NONE
        return {
            "ssl_certfile": self.certfile,
            "ssl_keyfile": self.keyfile,
            "ssl_ca_certs": self.ca_certs,
            "ssl_cert_reqs": asked,
        }

    def load(self, context: ssl.SSLContext | None = None) -> str:
        """Use it for connections from now on; raises OSError, and nothing has changed then.

        A pair of which only one half is new yet does not fit; so all is tried beside first.
        """
        for one in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
            if one is not None:
                one.load_cert_chain(self.certfile, self.keyfile)
                if self.ca_certs:
                    one.load_verify_locations(self.ca_certs)
        return self.certfile

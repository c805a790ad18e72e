"""Keys and certificate as the settings name them, kept as new as their files are."""

import logging
import os
import ssl
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from proxy.admin.certificate import Certificate
from proxy.admin.guard import Guard
from proxy.admin.keys import MalformedKeys, read_keys
from proxy.admin.watching import Watch, Watched
from proxy.config import ProxyConfig

JSON_SUFFIX = ".json"
LARGEST_FILE = 4 << 20

logger = logging.getLogger(__name__)


class MalformedSecrets(ValueError):
    """A file cannot be used; the text has its name, and nothing secret."""


@dataclass(slots=True)
class Secrets:
    """Begun with what the files say now; `watch` keeps it so while it runs."""

    guard: Guard
    certificate: Certificate | None = None
    watch: Watch = field(default_factory=Watch)

    @classmethod
    def of(cls, config: ProxyConfig, *, parts: int = 1) -> "Secrets":
        """Raises OSError or MalformedSecrets where one cannot be used.

        This is one of `parts` processes behind one port.
        """
        secrets = cls(Guard(config.api_key, config.admin_api_key))
        if config.api_key_file is not None:
            take = partial(secrets.take_keys, config.api_key_file, parts)
            secrets.watch.files.append(Watched("the file of keys", [config.api_key_file], take))
        if config.ssl_certfile is not None:
            paths = config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs
            secrets.certificate = Certificate(*paths)
            try:
                secrets.certificate.load()
            except (ssl.SSLError, FileNotFoundError, PermissionError) as error:  # unnamed there
                files = ", ".join(secrets.certificate.paths)
                raise MalformedSecrets(f"{files}: {error}") from error
        for one in secrets.watch.files:
            one.begin()
        return secrets

    def take_keys(self, path: str, parts: int) -> str:
        """Have the guard let in whom the file names, and nobody else of it."""
        data = Path(path).read_bytes()
        if len(data) > LARGEST_FILE:
            raise MalformedSecrets(f"{path}: {len(data)} bytes are too many")
        try:
            kind, taken = path.endswith(JSON_SUFFIX), self.guard.names
            ring = read_keys(data, is_json=kind, parts=parts, taken=taken)
        except MalformedKeys as error:
            raise MalformedSecrets(f"{path}: {error}") from error
        _warn_of_readers(path)
        self.guard.listed = ring
        return f"{len(ring.clients)} keys of clients, {len(ring.admins)} of admins"

    def serve_with(self, context: ssl.SSLContext | None) -> None:
        """New connections have the certificate that is in the files then."""
        if self.certificate is not None and context is not None:
            take = partial(self.certificate.load, context)
            watched = Watched("the certificate", self.certificate.paths, take)
            watched.begin()
            self.watch.files.append(watched)


def _warn_of_readers(path: str) -> None:
    if os.stat(path).st_mode & (stat.S_IRGRP | stat.S_IROTH):
        logger.warning("%s can be read by others than its owner", path)

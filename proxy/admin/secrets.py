"""API keys and the TLS certificate, reloaded when their files change."""

import logging
import os
import ssl
import stat
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from proxy.admin.certificate import Certificate, RenewedContext
from proxy.admin.file_watcher import FileWatcher, WatchedFiles
from proxy.admin.guard import Guard
from proxy.admin.keys import MalformedKeys, read_keys
from proxy.config import ProxyConfig

KEY_FILE, JSON_SUFFIX = "--api-key-file", ".json"
LARGEST_FILE = 4 << 20

logger = logging.getLogger(__name__)


class MalformedSecrets(ValueError):
    """A file cannot be used; the text has its name, and nothing secret."""


@dataclass(slots=True)
class Secrets:
    """Loaded at the start; `watch` reloads changed files while it runs."""

    guard: Guard
    certificate: Certificate | None = None
    watch: FileWatcher = field(default_factory=FileWatcher)

    @classmethod
    def of(cls, config: ProxyConfig, *, parts: int = 1) -> "Secrets":
        """Load everything; raises OSError or MalformedSecrets if a file cannot be used.

        This is one of `parts` processes behind one port.
        """
        secrets = cls(Guard(config.api_key, config.admin_api_key))
        if config.api_key_file is not None:
            load = partial(secrets.load_keys, config.api_key_file, parts)
            secrets.watch.files.append(
                WatchedFiles("the file of keys", [config.api_key_file], load)
            )
        if config.ssl_certfile is not None:
            paths = config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs
            secrets.certificate = Certificate(*paths)
            secrets.certificate.load()
        for one in secrets.watch.files:
            one.begin()
        return secrets

    def load_keys(self, path: str, parts: int) -> str:
        """Replace the guard's keys by those of the file; returns a summary for the log."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise MalformedSecrets(f"{KEY_FILE} {path}: {error.strerror}") from error
        if len(data) > LARGEST_FILE:
            raise MalformedSecrets(f"{KEY_FILE} {path}: {len(data)} bytes are too many")
        try:
            kind, taken = path.endswith(JSON_SUFFIX), self.guard.names
            ring = read_keys(data, is_json=kind, parts=parts, taken=taken)
        except MalformedKeys as error:
            raise MalformedSecrets(f"{KEY_FILE} {path}: {error}") from error
        _warn_of_readers(path)
        self.guard.listed = ring
        return f"{len(ring.clients)} keys of clients, {len(ring.admins)} of admins"

    def tls_context(self) -> ssl.SSLContext | None:
        """The server's TLS context, which follows the files; None: there is no certificate."""
        if self.certificate is None:
            return None
        context = RenewedContext(ssl.PROTOCOL_TLS_SERVER)
        load = partial(self.certificate.load, context)
        watched = WatchedFiles("the certificate", self.certificate.paths, load)
        watched.begin()
        self.watch.files.append(watched)
        return context


def _warn_of_readers(path: str) -> None:
    """Warn of a file that others can read; one of another owner we read as a group of its own.

    So does a pod of Kubernetes, to which a secret's file comes from root.
    """
    file = os.stat(path)
    needless = stat.S_IRGRP if file.st_uid == os.geteuid() else 0
    if file.st_mode & (needless | stat.S_IROTH):
        logger.warning("%s can be read by others than its owner", path)

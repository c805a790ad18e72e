"""Files are read anew when they change, and a broken one changes nothing."""

import logging
import os
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)

from proxy.admin.guard import Forbidden, Guard, Unauthorized
from proxy.admin.secrets import MalformedSecrets, Secrets
from proxy.config import ProxyConfig

V1, ADD = "/v1/completions", "/instances/add"


def keys(**named: str) -> str:
    return "".join(f'[[keys]]\nname = "{name}"\nkey = "{key}"\n' for name, key in named.items())


def opened(guard: Guard, key: str) -> bool:
    try:
        guard.check(V1, f"Bearer {key}", None)
    except Unauthorized:
        return False
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return replace(tmp_path / "keys.toml", keys(one="sk-1"))


def replace(path: Path, text: str) -> Path:
    """As editors and secret stores do it: another file takes its place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    return new.replace(path)


def secrets_of(path: Path) -> Secrets:
    return Secrets.of(ProxyConfig(api_key_file=str(path), admin_api_key="boss"))


def look(secrets: Secrets, *, force: bool = False) -> None:
    for one in secrets.watch.files:
        one.reload(force=force)


def test_a_changed_file_counts_at_once(path: Path) -> None:
    secrets = secrets_of(path)
    assert opened(secrets.guard, "sk-1")
    assert not opened(secrets.guard, "sk-2")
    replace(path, keys(one="sk-2"))
    look(secrets)
    assert opened(secrets.guard, "sk-2")
    assert not opened(secrets.guard, "sk-1")


def test_nobody_in_a_file_is_called_as_a_key_of_the_settings_is(path: Path) -> None:
    config = ProxyConfig(api_key=("sk-a", "sk-b"), api_key_file=str(path))
    replace(path, keys(**{"api-key-2": "sk-1"}))
    with pytest.raises(MalformedSecrets, match="api-key-2 is the name of one that --api-key"):
        Secrets.of(config)
    replace(path, keys(**{"api-key-3": "sk-1"}))
    assert opened(Secrets.of(config).guard, "sk-1")


def test_a_key_of_the_settings_that_is_in_the_file_too_has_its_limits(path: Path) -> None:
    replace(path, keys(one="sk-1") + "limits = { max_requests = 1 }\n")
    guard = Secrets.of(ProxyConfig(api_key=("sk-1",), api_key_file=str(path))).guard
    found = guard.check(V1, "Bearer sk-1", None)
    assert found.name == "one"
    assert found.limits
    assert found.limits.max_requests == 1


def test_so_does_one_of_the_same_time_and_size(path: Path) -> None:
    secrets, before = secrets_of(path), path.stat()
    replace(path, keys(one="sk-2"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    look(secrets)
    assert opened(secrets.guard, "sk-2")


def test_what_has_not_changed_is_read_when_somebody_says_so(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secrets = secrets_of(path)
    look(secrets)
    assert "read anew" not in caplog.text
    look(secrets, force=True)
    assert "the file of keys was read anew: 1 keys of clients, 0 of admins" in caplog.text


@pytest.mark.parametrize("text", ["", "keys = [", "[[keys]]\nname = 'one'", None])
def test_a_broken_file_keeps_the_old_keys_and_says_so_once(
    path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = secrets_of(path)
    if text is None:
        path.unlink()
    else:
        replace(path, text)
    for _ in range(3):
        look(secrets)
    assert opened(secrets.guard, "sk-1")
    assert not opened(secrets.guard, "")
    assert secrets.watch.files[0].trouble
    assert caplog.text.count("cannot be used, and stays as it was") == 1
    assert "sk-1" not in caplog.text
    replace(path, keys(one="sk-3"))
    look(secrets)
    assert secrets.watch.files[0].trouble is None
    assert opened(secrets.guard, "sk-3")


def test_a_broken_file_is_no_beginning(path: Path) -> None:
    replace(path, "keys = [")
    with pytest.raises(MalformedSecrets, match=r"keys\.toml"):
        secrets_of(path)
    path.unlink()
    with pytest.raises(MalformedSecrets, match=f"^--api-key-file {path}: No such file"):
        secrets_of(path)


def test_a_file_without_clients_opens_nothing_to_them(path: Path) -> None:
    replace(path, keys(ops="sk-ops") + "admin = true\n")
    guard = secrets_of(path).guard
    assert not opened(guard, "")
    assert not opened(guard, "sk-ops")
    assert guard.check(ADD, None, "sk-ops").name == "ops"
    assert guard.check(ADD, None, "boss").name == "admin"
    with pytest.raises(Forbidden):
        guard.check(ADD, None, "sk-1")


@pytest.mark.parametrize(
    ("mode", "ours", "told"),
    [
        (0o600, True, False),
        (0o640, True, True),
        (0o604, True, True),
        (0o640, False, False),  # the group lets us read what root owns, as in a pod
        (0o644, False, True),
    ],
)
def test_who_else_can_read_the_file_is_told(
    path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    ours: bool,
    told: bool,
) -> None:
    path.chmod(mode)
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner if ours else owner + 1)
    secrets_of(path)
    assert ("can be read by others" in caplog.text) is told


def test_half_of_a_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="--ssl-keyfile goes with --ssl-certfile only"):
        ProxyConfig(ssl_keyfile="some.pem")
    with pytest.raises(ValueError, match="--ssl-ca-certs goes with --ssl-certfile only"):
        ProxyConfig(ssl_ca_certs="some.pem")


def test_a_key_with_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    """OpenSSL would ask at the terminal, and the proxy would wait."""
    key = ec.generate_private_key(ec.SECP256R1())
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame")
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*form))
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "cert.pem"))
    config = ProxyConfig(
        ssl_certfile=str(tmp_path / "cert.pem"), ssl_keyfile=str(tmp_path / "key.pem")
    )
    with pytest.raises(OSError, match=r"--ssl-keyfile .*key\.pem: the key has a password"):
        Secrets.of(config)


def test_a_certificate_that_is_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"^--ssl-certfile {tmp_path}: Is a directory"):
        Secrets.of(ProxyConfig(ssl_certfile=str(tmp_path)))


@pytest.mark.parametrize(
    ("certfile", "keyfile", "missing"),
    [
        ("cert.pem", None, "--ssl-certfile .* has no private key .* no --ssl-keyfile"),
        ("key.pem", "cert.pem", "--ssl-certfile .* has no certificate"),
        ("cert.pem", "cert.pem", "--ssl-keyfile .* has no private key"),
        ("cert.pem", "none.pem", r"--ssl-keyfile .*none\.pem: No such file"),
        ("other.pem", "key.pem", r"--ssl-keyfile .*key\.pem: .* not that of the certificate"),
    ],
)
def test_what_a_certificates_files_lack_is_named(
    certfile: str, keyfile: str | None, missing: str, tmp_path: Path
) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "other.pem"))
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    key = None if keyfile is None else str(tmp_path / keyfile)
    with pytest.raises(OSError, match=missing):
        Secrets.of(ProxyConfig(ssl_certfile=str(tmp_path / certfile), ssl_keyfile=key))


@pytest.mark.parametrize(("name", "wrong"), [("none", "No such file"), ("key", "has no cert")])
def test_authorities_that_are_none_are_named(name: str, wrong: str, tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    config = ProxyConfig(ssl_certfile=str(tmp_path / "pair"), ssl_ca_certs=str(tmp_path / name))
    with pytest.raises(OSError, match=f"^--ssl-ca-certs {tmp_path}/{name}.*{wrong}"):
        Secrets.of(config)

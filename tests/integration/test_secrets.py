"""Keys and certificates of a proxy that runs are replaced, and no stream hears of it."""

import asyncio
import signal
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
import trustme

from discovery.address import parse_address
from tests.integration.test_proxy_process import HERE, Running, running
from tests.unit.test_watching import keys, replace

PATIENCE_S = 60
ADMIN = {"X-API-Key": "key"}


async def answered(
    proxy: Running, path: str, key: str, trusted: ssl.SSLContext | None = None
) -> int:
    """The status of a call with this key; over TLS with what is trusted."""
    url = f"{'https' if trusted else 'http'}://{proxy.address}{path}"
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=trusted or True) as answer,
    ):
        return answer.status


async def until(proxy: Running, key: str, status: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await answered(proxy, "/v1/models", key) != status:
            continue


def write(certificate: trustme.LeafCert, path: Path) -> Path:
    replace(path, certificate.private_key_and_cert_chain_pem.bytes().decode())
    return path


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_keys_come_and_go_while_it_runs(tmp_path: Path) -> None:
    path = replace(tmp_path / "keys.toml", keys(one="sk-1"))
    async with running(api_key_file=str(path)) as proxy:
        assert await answered(proxy, "/v1/models", "sk-1") == 200
        replace(path, keys(one="sk-2"))
        await proxy.line("the file of keys was read anew: 1 keys of clients")
        assert await answered(proxy, "/v1/models", "sk-2") == 200
        assert await answered(proxy, "/v1/models", "sk-1") == 401
        replace(path, "[[keys")
        assert str(path) in await proxy.line("cannot be used, and stays as it was")
        assert await answered(proxy, "/v1/models", "sk-2") == 200
        replace(path, keys(one="sk-3"))
        proxy.process.send_signal(signal.SIGHUP)
        await proxy.line("the file of keys was read anew")
        await until(proxy, "sk-3", 200)
        proxy.process.terminate()


async def test_a_sighup_to_their_parent_has_all_workers_read_the_keys(tmp_path: Path) -> None:
    """The file has not changed, so nothing else has them read it."""
    path = replace(tmp_path / "keys.toml", keys(one="sk-1"))
    async with running(workers=2, api_key_file=str(path)) as proxy:
        proxy.process.send_signal(signal.SIGHUP)
        told = [await proxy.line("the file of keys was read anew") for _ in range(2)]
        assert {line.partition(" | ")[0] for line in told} == {"worker-0", "worker-1"}
        assert await answered(proxy, "/v1/models", "sk-1") == 200
        proxy.process.terminate()


async def test_each_call_of_an_admin_is_one_line_of_the_log(tmp_path: Path) -> None:
    named = keys(ops="sk-ops") + "admin = true\n"
    path = replace(tmp_path / "keys.toml", named)
    async with running(api_key_file=str(path)) as proxy, aiohttp.ClientSession() as session:
        url = f"http://{proxy.address}/instances"
        for key, who, status in (
            ("sk-ops", "ops", 200),
            ("key", "admin", 200),
            ("x", "-", 403),
        ):
            async with session.get(url, headers={"X-API-Key": key}) as answer:
                assert answer.status == status
            line = await proxy.line("call='GET /instances'")
            assert f"admin={who} from={HERE} call='GET /instances' status={status}" in line
            assert "sk-ops" not in line
        body = {"type": "decode", "instance": "127.0.0.1:1", "api_key": "secret"}
        async with session.post(f"{url}/add", json=body, headers=ADMIN):
            line = await proxy.line("call='POST /instances/add'")
            assert "status=400 said='An instance has no field `api_key`" in line
            assert "secret" not in line
        proxy.process.terminate()


async def test_what_an_admin_looks_at_is_in_the_log_and_what_a_client_does_is_not(
    tmp_path: Path,
) -> None:
    path = replace(tmp_path / "keys.toml", keys(one="sk-1"))
    async with running(api_key_file=str(path)) as proxy, aiohttp.ClientSession() as session:
        for looked, status in (("/status", 200), ("/get_loads", 200), ("/requests/a", 404)):
            assert await answered(proxy, looked, "sk-1") == status
            async with session.get(f"http://{proxy.address}{looked}", headers=ADMIN) as answer:
                assert answer.status == status
            line = await proxy.line("admin=")
            assert f"admin=admin from={HERE} call='GET {looked}' status={status}" in line
        proxy.process.terminate()


async def test_a_renewed_certificate_is_shown_to_who_connects_next(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    path = write(old.issue_cert(HERE), tmp_path / "proxy.pem")
    async with running(ssl_certfile=str(path)) as proxy:
        assert await answered(proxy, "/health", "", trusting(old)) == 503
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await answered(proxy, "/health", "", trusting(new))
        write(new.issue_cert(HERE), path)
        await proxy.line("the certificate was read anew")
        assert await answered(proxy, "/health", "", trusting(new)) == 503
        replace(path, "no certificate")
        await proxy.line("the certificate cannot be used, and stays as it was")
        assert await answered(proxy, "/health", "", trusting(new)) == 503
        proxy.process.terminate()


async def test_a_key_that_does_not_fit_yet_changes_nothing(tmp_path: Path) -> None:
    """Two files are never replaced at the same moment."""
    authority = trustme.CA()
    one, two = (authority.issue_cert(HERE) for _ in range(2))
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    replace(chain, one.cert_chain_pems[0].bytes().decode())
    replace(key, one.private_key_pem.bytes().decode())
    async with running(ssl_certfile=str(chain), ssl_keyfile=str(key)) as proxy:
        trusted = trusting(authority)
        replace(chain, two.cert_chain_pems[0].bytes().decode())
        await proxy.line("the certificate cannot be used")
        assert await answered(proxy, "/health", "", trusted) == 503
        replace(key, two.private_key_pem.bytes().decode())
        await proxy.line("the certificate was read anew")
        assert await answered(proxy, "/health", "", trusted) == 503
        proxy.process.terminate()


async def test_clients_may_have_to_show_a_certificate(tmp_path: Path) -> None:
    authority, strangers = trustme.CA(), trustme.CA()
    path = write(authority.issue_cert(HERE), tmp_path / "proxy.pem")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    trusted = str(tmp_path / "ca.pem")
    async with running(ssl_certfile=str(path), ssl_ca_certs=trusted) as proxy:
        known, stranger = trusting(authority), trusting(authority)
        authority.issue_cert("client").configure_cert(known)
        strangers.issue_cert("client").configure_cert(stranger)
        assert await answered(proxy, "/health", "", known) == 503
        for nobody in (trusting(authority), stranger):
            with pytest.raises(aiohttp.ClientError):
                await answered(proxy, "/health", "", nobody)
        proxy.process.terminate()


async def test_a_client_of_an_authority_that_was_removed_is_let_in_no_more(
    tmp_path: Path,
) -> None:
    """Nor by the session that it had before."""
    old, new = trustme.CA(), trustme.CA()
    path = write(new.issue_cert(HERE), tmp_path / "proxy.pem")
    trusted = replace(tmp_path / "ca.pem", old.cert_pem.bytes().decode())
    removed, added = trusting(new), trusting(new)
    old.issue_cert("client").configure_cert(removed)
    new.issue_cert("client").configure_cert(added)
    async with running(ssl_certfile=str(path), ssl_ca_certs=str(trusted)) as proxy:
        session = await asyncio.to_thread(greeted, proxy, removed)
        replace(trusted, new.cert_pem.bytes().decode())
        await proxy.line("the certificate was read anew")
        assert await answered(proxy, "/health", "", added) == 503
        with pytest.raises(aiohttp.ClientError):
            await answered(proxy, "/health", "", removed)
        with pytest.raises(OSError):  # noqa: PT011  refused, or cut
            await asyncio.to_thread(greeted, proxy, removed, session)
        proxy.process.terminate()


def greeted(
    proxy: Running, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSession | None:
    """Asks for something, and has the session of the connection."""
    with (
        socket.create_connection(parse_address(proxy.address), PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=HERE, session=session) as tls,
    ):
        tls.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        if not tls.recv(1):
            raise ConnectionResetError("cut")
        return tls.session

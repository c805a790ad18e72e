"""`pdserve status` against what a proxy really says, and against everybody else."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import trustme

from discovery.registration import Load, Registration, Role, State
from discovery.registry import Registry
from proxy.admin.status import cluster_status
from proxy.errors import NodeFailed
from proxy.health.health import Health
from tests.fakes.raw_http import CUT, Step, answer, raw_server

ROOT = Path(__file__).parents[2]
NO_STATUS = {"error": {"message": "There is no GET /status here"}}
MAIN = "from deploy.cli import main; main()"
P, D = Role.PREFILL, Role.DECODE
TABLE = """\
ok, 7 requests in flight
KIND     ADDRESS  STATE         MODEL  WAITING  RUNNING  KV BLOCKS  HEARD      FAILED  NODE
prefill  p:1      ready         llama  1        2        1/4        2.0 s ago  0       n0
decode   d:1      breaker open  llama  0        0        0/9        2.0 s ago  1       n1
decode   d:2      draining      llama  -        -        -          2.0 s ago  0       n2
prefill  p:2      fits nobody   llama  -        -        -          2.0 s ago  0       n3
d:1: connection lost
p:2: fingerprint is new here and None on d:1
"""


def cluster() -> tuple[Registry, Health]:
    registry = Registry()
    for one in (
        Registration(P, "p:1", "h:0", "n0", "llama", load=Load(1, 2, 3, 4)),
        Registration(D, "d:1", "h:0", "n1", "llama", load=Load(0, 0, 9, 9)),
        Registration(D, "d:2", "h:0", "n2", "llama", state=State.DRAINING),
        Registration(P, "p:2", "h:0", "n3", "llama", "new"),
    ):
        registry.apply(one, now=0)
    health = Health(registry)
    health.record_failure(NodeFailed("n1", "connection lost"), begun=0, now=0)
    return registry, health


def told(registry: Registry, health: Health) -> bytes:
    return answer(200, cluster_status(registry, health, now=2, in_flight=7))


async def pdserve_status(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, said = [sys.executable, "-c", MAIN, "status", *words], os.environ | environment
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT, env=said
    )


async def test_all_that_is_known_of_a_node_is_in_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # is not asked
    async with raw_server([told(*cluster())]) as proxy:
        ran = await pdserve_status("--url", f"http://{proxy.address}/")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, TABLE, "")
    assert proxy.heads[0].startswith("GET /status HTTP/1.1")


async def test_json_is_what_the_proxy_said() -> None:
    known = cluster()
    async with raw_server([told(*known)]) as proxy:
        ran = await pdserve_status("--url", f"http://{proxy.address}", "--json")
    said = cluster_status(*known, now=2, in_flight=7)
    assert (ran.returncode, msgspec.json.decode(ran.stdout)) == (0, said)


@pytest.mark.parametrize(
    ("place", "why"),
    [("| :", ""), (">/dev/full", "standard output: No space left on device\n")],
)
async def test_who_does_not_read_on_is_told_nothing_and_a_full_disk_is_named(
    place: str, why: str
) -> None:
    async with raw_server([told(*cluster()), CUT]) as proxy:
        words = sys.executable, "-c", MAIN, "status", "--url", f"http://{proxy.address}"
        shell = ["sh", "-c", f'"$@" {place}', "sh", *words]
        ran = await asyncio.to_thread(
            subprocess.run, shell, capture_output=True, text=True, cwd=ROOT
        )
    assert ran.stderr == why


async def test_a_cluster_that_is_not_well_is_shown_and_ends_with_1() -> None:
    registry = Registry()
    registry.apply(Registration(D, "d:1", "h:0", "n1"), now=0)
    async with raw_server([told(registry, Health(registry))]) as proxy:
        ran = await pdserve_status("--url", f"http://{proxy.address}")
    assert ran.returncode == 1
    assert ran.stdout.startswith("degraded, 7 requests in flight\n")
    assert "d:1" in ran.stdout
    why = "degraded: no prefill node that takes work fits a decode node\n"
    assert ran.stdout.endswith(why)


@pytest.mark.parametrize(
    ("known", "why"), [([], "no node is known"), ([P], "no decode node takes work")]
)
async def test_why_nobody_answers_is_told(known: list[Role], why: str) -> None:
    registry = Registry()
    for role in known:
        registry.apply(Registration(role, "n:1", "h:0", "n1"), now=0)
    async with raw_server([told(registry, Health(registry))]) as proxy:
        ran = await pdserve_status("--url", f"http://{proxy.address}")
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (1, f"unavailable: {why}")


async def test_a_key_is_shown_to_a_proxy_that_wants_one() -> None:
    async with raw_server([told(*cluster())]) as proxy:
        await pdserve_status("--url", f"http://{proxy.address}", "--api-key", "sesame")
    assert "Authorization: Bearer sesame" in proxy.heads[0]
    assert "x-api-key" not in proxy.heads[0].lower()


@pytest.mark.parametrize("name", ["PDSERVE_ADMIN_API_KEY", "ADMIN_API_KEY", None])
async def test_an_admins_key_does_as_well(
    name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = () if name else ("--admin-api-key", "sesame")
    if name:
        monkeypatch.setenv(name, "sesame")
    async with raw_server([told(*cluster())]) as proxy:
        ran = await pdserve_status("--url", f"http://{proxy.address}", *words)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "x-api-key: sesame" in proxy.heads[0].lower()
    assert "authorization" not in proxy.heads[0].lower()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            [answer(401, {"error": "who?"})],
            "HTTP Error 401: X (try --api-key or --admin-api-key)",
        ),
        ([answer(200, ["not", "a", "proxy"])], "Expected `object`, got `array`"),
        ([CUT], "without response"),
        ([b"What?\r\n\r\n", CUT], "What?"),
    ],
)
async def test_who_does_not_answer_like_a_proxy(script: list[Step], said: str) -> None:
    async with raw_server(script) as server:
        url = f"http://{server.address}"
        ran = await pdserve_status("--url", url)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in the_line(ran, url)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--api-key", "k"],
            "(try another --api-key: it has to be a client's; an admin's goes with "
            "--admin-api-key)",
        ),
        (["--admin-api-key", "k"], "(try another --admin-api-key)"),
        (
            ["--api-key", "k", "--admin-api-key", "k"],
            "(try another --api-key or another --admin-api-key)",
        ),
    ],
)
async def test_a_key_that_is_not_known_is_told_from_none(words: list[str], said: str) -> None:
    async with raw_server([answer(401, {"error": "who?"})]) as server:
        url = f"http://{server.address}"
        ran = await pdserve_status("--url", url, *words)
    assert ran.returncode == 1
    assert the_line(ran, url).endswith(said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "127.0.0.1:1: [Errno 111] Connection refused"),
        ("http://", "no host given"),
    ],
)
async def test_who_cannot_be_reached(url: str, said: str) -> None:
    ran = await pdserve_status("--url", url)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in the_line(ran, url)


async def test_a_proxy_that_wants_a_certificate_is_shown_one(tmp_path: Path) -> None:
    authority, client = trustme.CA(), tmp_path / "client.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(client))
    trust = {"SSL_CERT_FILE": str(tmp_path / "ca.pem")}
    async with wants_certificates(authority) as port:
        url = f"https://127.0.0.1:{port}"
        ran = await pdserve_status("--url", url, "--client-cert", str(client), **trust)
        assert ran.stdout == TABLE
        ran = await pdserve_status("--url", url, **trust)
        assert the_line(ran, url).endswith("(try --client-cert)")
        ran = await pdserve_status("--url", url)
        assert the_line(ran, url).endswith("(try SSL_CERT_FILE)")
        plain = f"http://127.0.0.1:{port}"
        ran = await pdserve_status("--url", plain)
        assert the_line(ran, plain).endswith("(try https://)")


@pytest.mark.parametrize(
    ("cert", "key", "said"),
    [
        ("none", None, "--client-cert {}/none: No such file or directory"),
        ("pair", "none", "--client-key {}/none: No such file or directory"),
        ("ca", None, "--client-cert {}/ca has no private key (PEM), and there is no "),
        ("key", None, "--client-cert {}/key has no certificate (PEM)"),
        ("ca", "key", "--client-key {}/key: the key is not that of the certificate"),
    ],
)
async def test_a_certificate_that_cannot_be_shown_is_named_by_its_flag(
    cert: str, key: str | None, said: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("client")
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key"))
    issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "pair"))
    words = ["--client-cert", str(tmp_path / cert)]
    words += ["--client-key", str(tmp_path / key)] if key else []
    ran = await pdserve_status("--url", "https://127.0.0.1:1", *words)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"pdserve: {said.format(tmp_path)}")
    assert "_ssl.c" not in ran.stderr


async def test_a_node_is_told_from_a_proxy() -> None:
    async with raw_server([answer(404, NO_STATUS)]) as server:
        url = f"http://{server.address}"
        assert "this may be a node's)" in the_line(await pdserve_status("--url", url), url)


async def test_plain_http_is_told_from_tls() -> None:
    async def refuse(_: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        client.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        client.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert the_line(await pdserve_status("--url", url), url).endswith("(try http://)")


@asynccontextmanager
async def wants_certificates(authority: trustme.CA) -> AsyncIterator[int]:
    """What answers /status to clients with a certificate; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(told(*cluster()))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


def the_line(ran: subprocess.CompletedProcess[str], url: str) -> str:
    """The only one that it said, and what it is about."""
    (line,) = ran.stderr.splitlines()
    assert line.startswith(f"pdserve status: {url}: ")
    return line

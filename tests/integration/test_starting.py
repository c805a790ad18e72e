"""What cannot start says why in a line, ends with a status, and leaves nothing behind."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.cli import parse
from deploy.config import DEMO_MODEL, UpConfig
from deploy.supervisor import ProcessFailed
from deploy.up import LocalCluster

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"
MAIN = "from deploy.cli import main; main()"
PATIENCE_S = 60.0
FREE_PORTS = {"PDSERVE_KV_PORT": "0", "PDSERVE_DISCOVERY_PORT": "0"}  # where no flag says more


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that somebody else listens on."""
    with socket.create_server((HERE, 0)) as listening:
        yield str(listening.getsockname()[1])


def pdserve(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, *words]
    env = os.environ | FREE_PORTS
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=env, timeout=PATIENCE_S
    )


@pytest.mark.parametrize("command", ["up", "proxy", "prefill"])
def test_a_model_that_is_nowhere(command: str, tmp_path: Path) -> None:
    model = str(tmp_path / "none")
    ran = pdserve(command, "--model", model, "--port", "0")
    assert ran.returncode == 1
    assert f"{model} is no folder" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_device_that_is_none(ranks: str) -> None:
    device = "--device", "abacus", "--tensor-parallel-size", ranks
    ran = pdserve("decode", "--model", str(DEMO_MODEL), *device, "--port", "0")
    assert ran.returncode == 1
    assert "--device abacus: " in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stdout + ran.stderr


def test_a_system_on_which_nixl_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "nonsense")
    ran = pdserve("decode", "--model", str(DEMO_MODEL), "--port", "0")
    assert ran.returncode == 1
    assert "NIXL cannot start UCX here" in ran.stderr.splitlines()[-1]
    assert "Traceback" not in ran.stdout + ran.stderr


@pytest.mark.parametrize("flag", ["--port", "--discovery-port"])
def test_a_port_of_the_proxy_that_is_taken(flag: str, taken: str) -> None:
    free = {"--port": "0", "--discovery-port": "0"} | {flag: taken}
    ran = pdserve("proxy", *(word for pair in free.items() for word in pair))
    assert ran.returncode == 1
    assert ran.stderr.startswith("the proxy ends: ")
    who = rf"port {taken} is taken by process {os.getpid()} \(.*python.*\): .*\({flag}\)"
    assert re.search(who, ran.stderr)
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "[::1]", "two words"])
@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("up", "--host"),
        ("proxy", "--host"),
        ("proxy", "--discovery-host"),
        ("decode", "--advertise-host"),
    ],
)
def test_a_host_that_can_be_none(
    command: str, flag: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([command, "--model", "m", flag, host])
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"{flag} {host} is no host" in said


@pytest.mark.parametrize("flag", ["--host", "--discovery-host"])
def test_a_host_of_the_proxy_that_has_no_address(flag: str) -> None:
    ran = pdserve("proxy", "--port", "0", "--discovery-port", "0", flag, "nobody.invalid")
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"the proxy ends: {flag} nobody.invalid: ")


def test_a_host_of_a_node_that_has_no_address() -> None:
    ports = "--port", "0", "--kv-port", "0"
    ran = pdserve("decode", "--model", "none", *ports, "--host", "nobody.invalid")
    assert ran.returncode == 1
    assert ran.stderr.startswith("the decode node ends: --host nobody.invalid: ")


@pytest.mark.parametrize("flag", ["--api-key-file", "--ssl-certfile"])
def test_a_file_of_the_proxy_that_is_nowhere(flag: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    ran = pdserve("proxy", "--port", "0", "--discovery-port", "0", flag, missing)
    assert ran.returncode == 1
    assert ran.stderr == f"the proxy ends: {flag} {missing}: No such file or directory\n"


async def test_a_port_of_one_node_that_is_taken_ends_all_of_them(taken: str) -> None:
    config = UpConfig(port=0, prefill_ports=(int(taken),), threads=1, kv_connector="tcp")
    by = f"port {taken} is taken by process {os.getpid()} .*--prefill-ports"
    await is_refused(config, f"prefill-0 ended with status 1: .*{by}")


def test_a_port_of_hand_overs_that_is_taken_is_told_before_a_model_is_looked_for(
    taken: str, tmp_path: Path
) -> None:
    """Or who has waited for large weights learns it then."""
    (tmp_path / "config.json").write_text("{}")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((Path(DEMO_MODEL) / file).read_bytes())
    ran = pdserve("decode", "--model", str(tmp_path), "--port", "0", "--kv-port", taken)
    assert ran.returncode == 1
    assert f"port {taken} is taken by process {os.getpid()} " in ran.stderr
    assert "--kv-port" in ran.stderr.splitlines()[-1]


async def test_a_port_of_hand_overs_that_is_taken_is_told_with_its_flag(taken: str) -> None:
    """Two clusters on one machine: the second one is told what to give it."""
    config = UpConfig(port=0, decode_kv_ports=(int(taken),), threads=1, kv_connector="tcp")
    by = f"port {taken} is taken by process {os.getpid()} .*--decode-kv-ports"
    await is_refused(config, f"decode-0 ended with status 1: .*{by}")


async def is_refused(config: UpConfig, why: str) -> None:
    """It does not start, and says so, and leaves nobody behind."""
    cluster = LocalCluster(config, show=lambda line: None)
    with pytest.raises(ProcessFailed, match=why):
        await asyncio.wait_for(cluster.run(), PATIENCE_S)
    children = (cluster.proxy, *cluster.nodes)
    assert None not in [child.process and child.process.returncode for child in children]


async def test_what_is_not_ready_in_time_is_ended() -> None:
    cluster = LocalCluster(UpConfig(port=0, ready_timeout_s=0.0), show=lambda line: None)
    async with asyncio.timeout(PATIENCE_S) as patience:
        with pytest.raises(TimeoutError):
            await cluster.run()
    assert not patience.expired()
    assert cluster.ready.cancelled()
    assert cluster.proxy.process is None or cluster.proxy.process.returncode is not None

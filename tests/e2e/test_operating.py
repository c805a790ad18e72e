"""What operators do all day, with the commands and calls that they use."""

import asyncio
import os
import re
import ssl
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from bench.cpu import children, cpu_seconds, wake_ups
from node.engine_job import DECODE_NICENESS
from tests.e2e.cluster import MODEL, Running, running, stage, tokens_of
from tests.fakes.driver import prompt
from tests.fakes.lines import line_with
from tests.fakes.ports import free_ports
from tests.unit.test_watching import keys, replace

ROOT = Path(__file__).parents[2]
KEY = {"X-API-Key": "secret"}
WINDOWS, WINDOW_S, BUSY_SHARE = 2, 4.0, 0.5
MOST_WAKE_UPS, LESS = {"proxy": 90}, 40  # a second; twice as many as there were
LEAST_PRIORITY = 19
PATIENCE_S = 180.0


async def test_an_idle_cluster_leaves_the_processor_alone(tiny: Path) -> None:
    """Who looks at something again and again does so in every window. Wake-ups are counted, as
    the time that one takes depends on the machine; who waits for nothing takes all of it.
    """
    async with running(tiny) as cluster:
        await cluster.complete(prompt(40), max_tokens=4)
        pids = _all_processes(cluster)
        windows = [await _spent(pids) for _ in range(WINDOWS)]
    for name in windows[0]:
        often, busy = (min(of) for of in zip(*(one[name] for one in windows), strict=True))
        assert often < MOST_WAKE_UPS.get(name, LESS), (name, windows)
        assert busy < BUSY_SHARE, (name, windows)


async def test_a_node_added_by_hand_serves(tiny: Path) -> None:
    """A decode node that registers nowhere, and a proxy that has none."""
    node = ["decode_node", "--model", str(tiny), "--dtype", "float32", "--empty-proxy"]
    proxy = ["proxy", "--model", str(tiny), "--served-model-name", MODEL]
    ports = ["--port", "0", "--discovery-port", "0"]
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = await _started(stack, [*proxy, *ports])
        address = await _started(stack, [*node, "--port", "0", "--kv-port", "0"])
        body = {"type": "decode", "instance": address.removeprefix("http://")}
        async with session.post(f"{url}/instances/add", json=body) as refused:
            assert refused.status == 403
        async with session.post(f"{url}/instances/add", json=body, headers=KEY) as added:
            assert added.status == 200, await added.text()
        asked = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": True}
        async with session.post(f"{url}/v1/completions", json=asked) as answer:
            assert answer.status == 200
            assert (await answer.json())["usage"]["completion_tokens"] == 3
        async with session.get(f"{url}/health") as health:
            assert (await health.json())["status"] == "degraded"


async def test_the_xpyd_script_starts_and_ends_a_cluster(tiny: Path) -> None:
    http, discovery, prefill, decode = free_ports(4)
    variables = {
        "MODEL": str(tiny),
        "PREFILL_GPUS": "0",
        "DECODE_GPUS": "1",
        "PREFILL_PORTS": str(prefill),
        "DECODE_PORTS": str(decode),
        "PREFILL_KV_PORTS": "0",
        "DECODE_KV_PORTS": "0",
        "PROXY_PORT": str(discovery),
        "HTTP_PORT": str(http),
        "TIMEOUT_SECONDS": "180",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    script = await asyncio.create_subprocess_exec(
        str(ROOT / "deploy" / "xpyd.sh"),
        *("--served-model-name", MODEL, "--drain-timeout-s", "5"),
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, script)
        ready = (await line_with(script.stdout, re.compile(r"is ready at (http://\S+)")))[1]
        assert ready == f"http://127.0.0.1:{http}"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        asked = {"model": MODEL, "prompt": [5, 6, 7], "pdserve": {"timings": True}}
        async with session.post(f"{ready}/v1/completions", json=asked) as answer:
            said = await answer.json()
            assert stage(said, "transfer")["num_bytes"] > 0
        script.terminate()
        assert await asyncio.wait_for(script.wait(), PATIENCE_S) == 0


async def test_a_proxy_that_is_started_again_finds_its_nodes(tiny: Path) -> None:
    async with running(tiny) as cluster:
        before = await cluster.complete(prompt(40), max_tokens=4)
        os.kill(cluster.door("proxy"), 9)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    after = await cluster.complete(prompt(40), max_tokens=4)
                except (aiohttp.ClientError, AssertionError):
                    continue
                break
        assert tokens_of(after) == tokens_of(before)


async def test_a_cluster_with_keys_gets_ready_and_keeps_others_out(tiny: Path) -> None:
    async with running(tiny, api_key=("one", "two"), admin_api_key="boss") as cluster:
        models, add = f"{cluster.url}/v1/models", f"{cluster.url}/instances/add"
        for key, status in (("one", 200), ("two", 200), ("boss", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            async with cluster.session.get(models, headers=headers) as answer:
                assert answer.status == status
        for key, status in (("boss", 400), ("one", 403)):  # 400: nothing was said
            async with cluster.session.post(add, headers={"X-API-Key": key}) as answer:
                assert answer.status == status


@pytest.mark.parametrize("asks_clients", [False, True])
async def test_a_cluster_has_certificates_keys_of_a_file_and_any_setting(
    tiny: Path, tmp_path: Path, asks_clients: bool
) -> None:
    """What a proxy can be told, `up` tells its own."""
    authority, certificate = trustme.CA(), tmp_path / "proxy.pem"
    issued = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    certificate.write_bytes(issued.bytes())
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    options: dict[str, Any] = {"ssl_certfile": str(certificate), "timeline_kept": 0}
    if asks_clients:
        trusted.load_cert_chain(certificate)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        options["ssl_ca_certs"] = str(tmp_path / "ca.pem")
    path = replace(tmp_path / "keys.toml", keys(web="sk-1"))
    async with running(tiny, api_key_file=str(path), **options) as cluster:
        assert cluster.url.startswith("https://")
        url = f"{cluster.url}/v1/completions"
        asked = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 3}
        async with cluster.session.post(url, json=asked, ssl=trusted) as refused:
            assert refused.status == 401
        headers = {"Authorization": "Bearer sk-1"}
        call = cluster.session.post(url, json=asked, headers=headers, ssl=trusted)
        async with call as answer:
            assert answer.status == 200, await answer.text()
        timeline = f"{cluster.url}/requests/{answer.headers['X-Request-Id']}"
        async with cluster.session.get(timeline, headers=headers, ssl=trusted) as none:
            assert none.status == 404


async def test_decode_engines_give_way_to_everybody_else(tiny: Path) -> None:
    async with running(tiny) as cluster:
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        pids = [cluster.door("proxy"), cluster.door("decode-0"), cluster.engine("prefill-0")]
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {ours}
        nice = os.getpriority(os.PRIO_PROCESS, cluster.engine("decode-0"))
        assert nice == min(ours + DECODE_NICENESS, LEAST_PRIORITY)


async def _spent(pids: Mapping[int, str]) -> dict[str, tuple[float, float]]:
    """Wake-ups a second of each within a window, and its share of a processor's time."""
    before = {pid: (wake_ups(pid), cpu_seconds(pid)) for pid in pids}
    await asyncio.sleep(WINDOW_S)  # the window that is measured
    after = {pid: (wake_ups(pid), cpu_seconds(pid)) for pid in pids}
    return {
        name: (
            (after[pid][0] - before[pid][0]) / WINDOW_S,
            (after[pid][1] - before[pid][1]) / WINDOW_S,
        )
        for pid, name in pids.items()
    }


def _all_processes(cluster: Running) -> dict[int, str]:
    """Pid to name, of the proxy, of each node's door, and of its engine."""
    found = {cluster.door("proxy"): "proxy"}
    for child in cluster.cluster.nodes:
        door = cluster.door(child.name)
        found[door] = child.name
        found |= dict.fromkeys(children(door), f"{child.name}'s engine")
    return found


async def _started(stack: AsyncExitStack, command: list[str]) -> str:
    """Run `python -m` with this command; its URL, from the line that says it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        env=os.environ | {"ADMIN_API_KEY": KEY["X-API-Key"]},
        stderr=asyncio.subprocess.PIPE,
    )
    stack.push_async_callback(_end, process)
    return (await line_with(process.stderr, re.compile(r"ready.* (http://[^ ,]+)")))[1]


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()

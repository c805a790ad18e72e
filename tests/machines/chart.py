"""`python -m tests.machines.chart`: our Helm chart, with a machine for each of its pods.

Nodes are there before their proxies have names; a proxy is replaced by one with its name and
another address. Exits with 1 where clients are not served, or a pod does not end as it should.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.chart import pods, render
from tests.machines.kubelet import Kubelet, NotReady, RunningPod
from tests.machines.lan import go_inside, lan

KEY = "sk-web-1"
SECRETS = {
    "ours": {
        "cluster-key": "a key of 32 letters, or a few more",
        "keys.toml": f'[[keys]]\nname = "web"\nkey = "{KEY}"\n',
    }
}
VALUES: Mapping[str, object] = {
    "secrets": {"clusterKey": {"name": "ours"}, "apiKeys": {"name": "ours"}},
    "nodeSettings": {"threads": 1, "drain_timeout_s": 2},
    "proxy": {"replicas": 2, "settings": {"drain_timeout_s": 2}},
}
ADDRESSES = [f"10.77.0.{last}" for last in range(11, 20)]
REPLACED = "demo-pdserve-proxy-0"
ASKED = {
    "model": "pdserve-demo",
    "messages": [{"role": "user", "content": "What is a prefill node?"}],
    "temperature": 0,
    "max_tokens": 24,
    "pdserve": {"timings": True},
}
NO_NAME = "it is tried again"
READY_S = 180.0  # a machine that is busy with all else
AGAIN_S = 30.0


async def main() -> None:
    """Run all of it; exits with a reason."""
    addresses = iter(ADDRESSES)
    with tempfile.TemporaryDirectory() as folder:
        async with lan() as net, aiohttp.ClientSession() as session:
            kubelet = Kubelet(net, Path(folder), render(VALUES), SECRETS, session)
            try:
                await _play(kubelet, addresses)
            except NotReady as error:
                sys.exit(str(error))
            finally:
                await kubelet.remove_all()


async def _play(kubelet: Kubelet, addresses: Iterator[str]) -> None:
    """Install, ask, replace a proxy, ask, and uninstall."""
    every = {pod.name: pod for pod in pods(kubelet.documents)}
    nodes = [pod for pod in every.values() if pod.component != "proxy"]
    for pod in nodes:
        await kubelet.start(pod, next(addresses))
    for pod in nodes:
        await kubelet.says(pod.name, NO_NAME, READY_S)
    for pod in every.values():
        if pod not in nodes:
            await kubelet.start(pod, next(addresses))
    await kubelet.become_ready(READY_S)
    before = await _ask_every_proxy(kubelet)
    await _delete(kubelet, REPLACED)
    await kubelet.start(every[REPLACED], next(addresses))
    await kubelet.become_ready(AGAIN_S)
    if await _ask_every_proxy(kubelet) != before:
        sys.exit("the answers are not those of before")
    for name in list(kubelet.running):
        await _delete(kubelet, name)


async def _ask_every_proxy(kubelet: Kubelet) -> list[str]:
    proxies = [one for one in kubelet.running.values() if one.pod.component == "proxy"]
    return [await _ask(kubelet.session, proxy) for proxy in proxies]


async def _ask(session: aiohttp.ClientSession, proxy: RunningPod) -> str:
    """An answer whose KV went from node to node; a client without a key gets none."""
    url = proxy.url("/v1/chat/completions")
    async with session.post(url, json=ASKED) as answer:
        if answer.status != 401:
            sys.exit(f"without a key: {answer.status}, {await answer.text()}")
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session.post(url, json=ASKED, headers=headers) as answer:
        said: dict[str, Any] = await answer.json()
    stages = {one["stage"]: one for one in said.get("pdserve", {}).get("stages", ())}
    if not stages.get("transfer", {}).get("num_bytes"):
        sys.exit(f"no KV went from node to node: {said}")
    return str(said["choices"][0]["message"]["content"])


async def _delete(kubelet: Kubelet, name: str) -> None:
    """End a pod as Kubernetes does."""
    lines = kubelet.running[name].lines
    try:
        status = await kubelet.delete(name)
    except TimeoutError:
        sys.exit(f"{name} has not ended in its grace period:\n{''.join(lines)}")
    if status != 0:
        sys.exit(f"{name} has ended with {status}:\n{''.join(lines)}")


if __name__ == "__main__":
    go_inside("tests.machines.chart")
    asyncio.run(main())

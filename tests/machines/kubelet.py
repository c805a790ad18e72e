"""Runs pods of our Helm chart, each on a machine of its own, as Kubernetes would."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from deploy.config import DEMO_MODEL
from tests.fakes.chart import Document, Pod, Secrets
from tests.fakes.waiting import is_seen
from tests.machines.box import NETWORK_ONLY
from tests.machines.lan import Lan, Machine

DEMO = "/opt/pdserve/demo"
MOUNTED = "/etc/pdserve"
ENTRY = [sys.executable, "-c", "from deploy.cli import main; main()"]
WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


class NotReady(Exception):
    """A pod that should be ready is not."""


@dataclass(slots=True)
class RunningPod:
    """A pod that was started; `lines` are what it prints."""

    pod: Pod
    address: str
    machine: Machine
    process: Process
    lines: list[str] = field(default_factory=list)
    reading: "asyncio.Task[None]" = field(init=False)

    def __post_init__(self) -> None:
        """Keep what it prints."""
        self.reading = asyncio.create_task(self._read())

    def url(self, path: str) -> str:
        """An address at its HTTP port."""
        return f"http://{self.address}:{self.pod.ports['http']}{path}"

    async def is_ready(self, session: aiohttp.ClientSession) -> bool:
        """What its readiness probe finds."""
        probe = self.pod.container["readinessProbe"]["httpGet"]
        with suppress(aiohttp.ClientConnectionError):
            async with session.get(self.url(probe["path"])) as answer:
                return answer.status == 200
        return False

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.lines.append(line.decode())


@dataclass(slots=True)
class Kubelet:
    """The pods of one release. A proxy's name is known to all pods once its pod runs."""

    lan: Lan
    folder: Path
    documents: Sequence[Document]
    secrets: Secrets
    session: aiohttp.ClientSession
    running: dict[str, RunningPod] = field(default_factory=dict)

    async def start(self, pod: Pod, address: str) -> None:
        """Start its process; it takes a while until it is ready."""
        root = self.folder / address
        self._mount(pod, root)
        environment = pod.environment(address, self.secrets)
        words = [self._outside(word, root) for word in pod.arguments(environment)]
        machine = await self.lan.start(address)
        self._hosts.touch()
        inside = ("unshare", "--mount", "--", "sh", "-c", WITH_HOSTS, str(self._hosts))
        process = await asyncio.create_subprocess_exec(
            *machine.command(*inside, *ENTRY, *words),
            env=os.environ | NETWORK_ONLY | environment,
            stdout=PIPE,
            stderr=STDOUT,
        )
        self.running[pod.name] = RunningPod(pod, address, machine, process)
        self._tell_names()

    async def become_ready(self, within_s: float) -> None:
        """Wait until all are; raises NotReady, with what the pod that is not has printed."""
        for name, pod in self.running.items():
            if not await is_seen(partial(pod.is_ready, self.session), within_s):
                raise NotReady(f"{name} is not ready:\n{''.join(pod.lines)}")

    async def says(self, name: str, words: str, within_s: float) -> None:
        """Wait until a pod prints these words; raises NotReady."""
        lines = self.running[name].lines

        async def is_said() -> bool:
            return any(words in line for line in lines)

        if not await is_seen(is_said, within_s):
            raise NotReady(f"{name} does not say {words!r}:\n{''.join(lines)}")

    async def delete(self, name: str) -> int:
        """End a pod; its process's exit status. Raises TimeoutError after its grace period."""
        pod = self.running.pop(name)
        self._tell_names()
        pod.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(pod.pod.spec["terminationGracePeriodSeconds"]):
                return await pod.process.wait()
        finally:
            await self._remove(pod)

    async def remove_all(self) -> None:
        """Kill what still runs."""
        for pod in self.running.values():
            await self._remove(pod)
        self.running.clear()

    async def _remove(self, pod: RunningPod) -> None:
        if pod.process.returncode is None:
            pod.process.kill()
        await pod.process.wait()
        await pod.reading
        await self.lan.power_off(pod.machine)

    def _mount(self, pod: Pod, root: Path) -> None:
        for path, text in pod.files(self.documents, self.secrets).items():
            file = Path(self._outside(path, root))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._outside(text, root))

    @property
    def _hosts(self) -> Path:
        return self.folder / "hosts"

    def _tell_names(self) -> None:
        """Written in place: all pods have this file itself for their /etc/hosts."""
        service = next(
            one["spec"]["serviceName"] for one in self.documents if one["kind"] == "StatefulSet"
        )
        lines = [
            f"{pod.address} {name}.{service}\n"
            for name, pod in self.running.items()
            if pod.pod.component == "proxy"
        ]
        self._hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def _outside(self, text: str, root: Path) -> str:
        """Paths of the image as they are on this machine."""
        return text.replace(MOUNTED, str(root)).replace(DEMO, str(DEMO_MODEL))

"""Machines on a switch: networks of their own, and cables that can be pulled.

Made by `unshare`, `nsenter` and `ip`, in a user namespace (`go_inside`), so nobody has to be
root, and nothing is left behind: a machine is there as long as the process that holds it.
"""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

SWITCH, HERE, NETWORK = "switch", "10.77.0.1", 24
NOBODY = "02:00:00:00:00:99"  # what is sent to this card reaches none
WITHIN = ("unshare", "--user", "--map-root-user", "--net", "--")
INSIDE = "PDSERVE_TESTS_INSIDE_LAN"
NEEDED = ("ip link add one type veth peer name two", "ip link add three type bridge")
KINDS = ("net", "ipc")
CARD = "eth0"


def why_not() -> str | None:
    """Why this system makes no machines, or None where it does."""
    try:
        ran = subprocess.run(
            [*WITHIN, "sh", "-c", " && ".join(NEEDED)],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except FileNotFoundError as missing:
        return f"there is no {missing.filename}"
    return None if ran.returncode == 0 else ran.stderr.strip()


def go_inside(module: str) -> None:
    """Begin this program again where machines can be made; exits where they cannot."""
    if INSIDE in os.environ:
        return
    if why := why_not():
        sys.exit(f"this system makes no networks: {why}")
    command = [*WITHIN, sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], command, os.environ | {INSIDE: "1"})


@dataclass(slots=True, eq=False)
class Machine:
    """One network with an address; `cable` is the switch's end of its cable."""

    address: str
    cable: str
    holder: Process

    def command(self, *words: str) -> list[str]:
        """What runs a command there."""
        spaces = [f"--{kind}=/proc/{self.holder.pid}/ns/{kind}" for kind in KINDS]
        return ["nsenter", *spaces, "--", *words]


@dataclass(slots=True)
class Lan:
    """The switch is this process's own network; who runs in it reaches all machines."""

    machines: dict[str, Machine] = field(default_factory=dict)  # by address
    _cables: int = 0
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self, address: str) -> Machine:
        """A machine with this address that knows of nothing that was before."""
        holder = await asyncio.create_subprocess_exec(
            *("unshare", *(f"--{kind}" for kind in KINDS), "--", "sh", "-c", "echo; exec cat"),
            stdin=PIPE,  # it ends when we do
            stdout=PIPE,
        )
        assert holder.stdout
        await holder.stdout.readline()
        self._cables += 1
        machine = Machine(address, f"cable{self._cables}", holder)
        card = ("name", CARD, "netns", str(holder.pid))
        await _ip("link", "add", machine.cable, "type", "veth", "peer", *card)
        for words in (
            ("link", "set", CARD, "address", _card(address)),
            ("address", "add", f"{address}/{NETWORK}", "dev", CARD),
            ("link", "set", CARD, "up"),
            ("link", "set", "lo", "up"),
        ):
            await _run(*machine.command("ip", *words))
        await _ip("link", "set", machine.cable, "up")
        await self.plug(machine)
        self.machines[address] = machine
        return machine

    async def plug(self, machine: Machine) -> None:
        """Its cable is in the switch."""
        await _ip("link", "set", machine.cable, "master", SWITCH)

    async def unplug(self, machine: Machine) -> None:
        """What is sent to it or by it is lost, and nobody is told."""
        await _ip("link", "set", machine.cable, "nomaster")

    async def part(self, one: str, other: str) -> None:
        """Who is at these addresses reaches all others, and not each other."""
        await self._lead(one, other, NOBODY)
        await self._lead(other, one, NOBODY)

    async def join(self, one: str, other: str) -> None:
        """They reach each other again."""
        await self._lead(one, other, _card(other))
        await self._lead(other, one, _card(one))

    async def _lead(self, here: str, there: str, card: str) -> None:
        """What is sent there from here goes to this card; who is off sends nothing."""
        async with self._changing:
            if machine := self.machines.get(here):
                way = ("ip", "neighbour", "replace", there, "lladdr", card, "dev", CARD)
                await _run(*machine.command(*way, "nud", "permanent"))

    async def power_off(self, machine: Machine) -> None:
        """It is gone without a word; the processes that ran there are the caller's to kill."""
        await self.unplug(machine)
        await _ip("link", "delete", machine.cable)
        async with self._changing:
            del self.machines[machine.address]
            assert machine.holder.stdin
            machine.holder.stdin.close()
            await machine.holder.wait()


@asynccontextmanager
async def lan() -> AsyncGenerator[Lan]:
    """A switch with our own address on it; all machines go with it."""
    card = ("address", _card(HERE))  # else the lowest of its cables', and another without that
    await _ip("link", "add", SWITCH, *card, "type", "bridge", "forward_delay", "0")
    await _ip("address", "add", f"{HERE}/{NETWORK}", "dev", SWITCH)
    await _ip("link", "set", SWITCH, "up")
    await _ip("link", "set", "lo", "up")
    made = Lan()
    try:
        yield made
    finally:
        for machine in list(made.machines.values()):
            await made.power_off(machine)
        await _ip("link", "delete", SWITCH)


def _card(address: str) -> str:
    return f"02:00:00:00:00:{int(address.rpartition('.')[2]):02x}"


async def _ip(*words: str) -> None:
    await _run("ip", *words)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=PIPE)
    _, said = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {said.decode().strip()}")

"""Nodes that are added by hand: asked for their identity, then probed for health.

InstanceError   400  the body is not an instance, or there is no node of that kind at its
address
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import msgspec

from api.errors import BadRequest
from api.wire import UNREADABLE
from discovery.address import parse_address
from discovery.errors import MalformedAddress, MalformedRegistration
from discovery.intake import JoinedNode, check_names
from discovery.listener import describe, log_joined, warn_of_misfits
from discovery.registration import BEAT_S, Context, Port, Registration, Role, from_map
from discovery.registry import Registry
from discovery.signed_calls import Signing
from proxy.health.probes import Probe
from proxy.nodes.model_names import model_at
from proxy.nodes.session import OK, PATIENCE_S, SignatureRejected, get_json
from proxy.workers.api import NoPeers, PeerWorkers

ROLES = {"prefill": Role.PREFILL, "decode": Role.DECODE}
NO_PAGE = {404, 405, 501}
NO_NODE = (
    "Instance validation failed. Nobody at {} says what it is, by /server_info or /v1/models: "
    "does it run, and can the proxy reach it?"
)
NO_OBJECT = 'The body has to be a JSON object: {"type": "decode", "instance": "10.0.0.5:8200"}.'
NO_TYPE = f"Invalid instance type. It has to be one of {', '.join(ROLES)}."
NO_FIELD = "An instance has no field `{}`: its fields are {}."
SILENT = (
    "Instance already exists: it is silent now, and comes back by itself once it answers. "
    "To add it as something else, remove it first."
)
AS_ADDRESS = "It has to be the node's HOST:PORT."

INSTANCE, BOOTSTRAP, LONGEST = "instance", "bootstrap_port", "max_model_len"
FIELDS = ("type", INSTANCE, BOOTSTRAP, LONGEST)
MOONCAKE, MOONCAKE_PORT = "MooncakeConnector", 8998
ABOUT_VLLM = "/server_info?config_format=json"
_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(Registration).decode

logger = logging.getLogger(__name__)


class InstanceError(BadRequest):
    """The messages begin with those of vLLM's proxy if it has one for the case."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What an operator says is a node; with `bootstrap_port`, a vLLM node with Mooncake.

    `max_model_len` is its context, in case the node does not report it.
    """

    role: Role
    address: str
    bootstrap_port: int | None = None
    max_model_len: int | None = None


def read_instance(data: bytes) -> Instance:
    """Decode the body of a request to add one; raises InstanceError."""
    try:
        body = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise InstanceError(f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InstanceError(NO_OBJECT)
    if unknown := [name for name in body if name not in FIELDS]:
        raise InstanceError(NO_FIELD.format(unknown[0], ", ".join(FIELDS)), unknown[0])
    instance = check_instance(body.get("type"), body.get("instance"), ("type", "instance"))
    return with_facts(instance, body.get(BOOTSTRAP), body.get(LONGEST))


def check_instance(kind: object, address: object, fields: tuple[str, str]) -> Instance:
    """Check type and address, called `fields` in the body; raises InstanceError for one."""
    if not isinstance(kind, str) or kind not in ROLES:
        raise InstanceError(NO_TYPE, fields[0])
    if not isinstance(address, str):
        raise InstanceError(f"Invalid instance format. {AS_ADDRESS}", fields[1])
    try:
        parse_address(address)
    except MalformedAddress as error:
        raise InstanceError(f"{error} {AS_ADDRESS}", fields[1]) from error
    return Instance(ROLES[kind], address)


def with_facts(instance: Instance, port: object, longest: object) -> Instance:
    """Add the bootstrap port and the context length; raises InstanceError."""
    facts = {BOOTSTRAP: (port, Port | None), LONGEST: (longest, Context | None)}
    told = dict[str, Any]()
    for name, (value, kind) in facts.items():
        try:
            told[name] = msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise InstanceError(f"{name}: {error}", name) from error
    return replace(instance, **told)


@dataclass(slots=True)
class Instances:
    """Keeps these nodes fresh in the registry; one that is down leaves it, but is probed."""

    session: aiohttp.ClientSession
    registry: Registry
    cluster_key: bytes | None = field(default=None, repr=False)
    beat_s: float = BEAT_S
    clock: Callable[[], float] = time.monotonic
    peers: PeerWorkers = field(default_factory=NoPeers)
    signing: Signing = field(init=False)
    _known: dict[str, Instance] = field(default_factory=dict)
    _probes: dict[str, Probe] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Register for nodes that are added at other workers."""
        self.signing = Signing.of(self.cluster_key)
        self.peers.update_handlers[INSTANCE] = self._adopt

    async def add(self, instance: Instance) -> None:
        """Add a node; raises InstanceError if it is not of that kind, or known already."""
        self._must_be_new(instance.address)
        try:
            registration = await self._ask(instance)
        except SignatureRejected as error:
            raise InstanceError(f"{instance.address} {error}", "instance") from error
        self._must_be_new(instance.address)  # it may have been added while it was asked
        if registration is None:
            raise InstanceError(NO_NODE.format(instance.address), "instance")
        if registration.type is not instance.role:
            kind = registration.type.name.lower()
            raise InstanceError(f"Instance is a {kind} node.", "type")
        if self._announced(registration):
            raise InstanceError("Instance already exists: it announces itself.", "instance")
        self._known[instance.address] = instance
        self._apply(registration)
        await self.peers.put(INSTANCE, instance.address, _encode(registration))

    def _must_be_new(self, address: str) -> None:
        if self.registry.at(address):
            raise InstanceError("Instance already exists.", "instance")
        if address in self._known:
            raise InstanceError(SILENT, "instance")

    async def remove(self, instance: Instance) -> None:
        """Remove a node; raises InstanceError if it was not added by hand."""
        known = self._known.get(instance.address)
        if known is not None and known.role is not instance.role:
            raise InstanceError(f"Instance is a {known.role.name.lower()} node.", "type")
        await self.forget(instance.address)

    def was_added(self, address: str) -> bool:
        """Whether there is a node that was added by this address, be it silent or not."""
        return address in self._known

    async def forget(self, address: str) -> None:
        """Remove a node by its address alone."""
        if address not in self._known:
            announced = self.registry.at(address) is not None
            hint = ": it announces itself. Drain it, or stop it." if announced else "."
            raise InstanceError(f"Instance was not added here{hint}", "instance")
        self._adopt(address, None)
        await self.peers.put(INSTANCE, address, None)

    def _adopt(self, address: str, value: bytes | None) -> None:
        """Apply an addition or removal of any worker; each worker probes by itself."""
        if value is not None:
            registration = _decode(value)
            facts = registration.bootstrap_port, registration.max_model_len
            self._known[address] = Instance(registration.type, address, *facts)
            self._apply(registration)
        elif self._known.pop(address, None):
            self._probes.pop(address, None)
            self.registry.remove(address)

    async def run(self) -> None:
        """Probe all nodes every beat until cancelled; slow nodes do not delay others."""
        asked = dict[str, asyncio.Task[None]]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self.beat_s)
                asked = {name: task for name, task in asked.items() if not task.done()}
                for address, instance in self._known.items():
                    if address not in asked:
                        asked[address] = tasks.create_task(self._probe(instance))

    async def _probe(self, instance: Instance) -> None:
        """Ask for health and identity: the node may have been replaced, or have another role.

        A pdserve node reports its role itself.
        """
        why = "it does not answer well"
        try:
            well = await self._is_well(instance)
            registration = await self._ask(instance) if well else None
        except SignatureRejected as error:
            registration, why = None, f"it {error}"
        address = instance.address
        if self._known.get(address) is not instance:
            return  # it was removed, or added again
        probe = self._probes.setdefault(address, Probe())
        was_up, up = probe.up, probe.record_answer(well=registration is not None)
        if was_up and not up and (gone := self.registry.remove(address)):
            self.registry.losses.note_silent(gone.registration, now=self.clock())
            logger.info("%s left: %s", describe(gone), why)
        if up and registration and not self._announced(registration):
            self._known[address] = replace(instance, role=registration.type)
            self._apply(registration)

    async def _is_well(self, instance: Instance) -> bool:
        """The node's own health check; a node without one counts as healthy if it answers."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        url = f"http://{instance.address}/health"
        try:
            async with self.session.get(url, timeout=timeout, allow_redirects=False) as answer:
                return answer.status == OK or answer.status in NO_PAGE
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _apply(self, registration: Registration) -> None:
        before = self.registry.at(registration.http_address)
        node = self.registry.apply(registration, now=self.clock(), static=True)
        if node:
            log_joined(JoinedNode(node, before))
            warn_of_misfits(self.registry)  # a worker has no listener that does

    def _announced(self, registration: Registration) -> bool:
        """Whether this very node is known under an address of its own."""
        return registration.node_id is not None and any(
            node.node_id == registration.node_id and node.address != registration.http_address
            for node in self.registry.all()
        )

    async def _ask(self, instance: Instance) -> Registration | None:
        """The node's registration, under the address it was added with; None: no node."""
        signed = self.signing.headers("GET", ABOUT_VLLM)
        said = await get_json(self.session, instance.address, ABOUT_VLLM, signed)
        try:
            registration = check_names(from_map(said))
        except MalformedRegistration:
            return await self._ask_vllm(instance, said)
        return msgspec.structs.replace(registration, http_address=instance.address)

    async def _ask_vllm(self, instance: Instance, about: object) -> Registration | None:
        """A vLLM node reports its model but not its role; in development mode it also reports
        how it hands KV over.
        """
        said = await model_at(self.session, instance.address)
        if said is None:
            return None
        port = instance.bootstrap_port or _bootstrap_of(about)
        port = port if instance.role is Role.PREFILL else None
        return Registration(
            *(instance.role, instance.address, ""),
            model=said.id,
            max_model_len=said.longest or instance.max_model_len,
            bootstrap_port=port,
        )


def _bootstrap_of(about: object) -> int | None:
    """The bootstrap port, by vLLM's `/server_info`; None: it hands KV over another way."""
    try:
        transfer = msgspec.convert(about, _About).vllm_config.kv_transfer_config
    except msgspec.ValidationError:
        return None
    return MOONCAKE_PORT if transfer and transfer.kv_connector == MOONCAKE else None


class _Transfer(msgspec.Struct):
    kv_connector: str | None = None


class _Settings(msgspec.Struct):
    kv_transfer_config: _Transfer | None = None


class _About(msgspec.Struct):
    vllm_config: _Settings

"""A catalogue over nodes that are only messages, with a clock in the hand."""

from dataclasses import dataclass, field

from api.served import ServedModel
from api.text_files import TextParcel
from discovery.registration import Registration, Role
from discovery.registry import Registry
from engine.grammars.checking import GrammarChecker
from proxy.health.health import Health
from proxy.models.catalogue import Catalogue, ModelSettings
from proxy.models.fetching import NotFetched
from proxy.models.model_pools import ConfiguredNames
from proxy.models.model_wait import ModelWait
from proxy.models.text_store import ModelTextStore

P, D = Role.PREFILL, Role.DECODE
NOBODYS = ModelSettings(ConfiguredNames(frozenset(), ("model",)))


@dataclass
class FakeNodes:
    """Gives parcels by address and digest, or raises what is there instead."""

    parcels: dict[str, TextParcel | Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    async def fetch(self, address: str, digest: str) -> bytes:
        self.asked.append(address)
        found = self.parcels.get(address, NotFetched("gone"))
        if isinstance(found, Exception):
            raise found
        return found.data


@dataclass
class Rig:
    """A catalogue, its nodes, and a clock in the hand."""

    own: ModelSettings = NOBODYS
    now: float = 100.0
    nodes: FakeNodes = field(default_factory=FakeNodes)
    registry: Registry = field(default_factory=Registry)

    def __post_init__(self) -> None:
        self.health, self.texts = Health(self.registry), ModelTextStore(self.nodes)
        self.catalogue = Catalogue(
            *(self.registry, self.texts, self.own, GrammarChecker(), self.health),
            ModelWait(0.0, 0.0, clock=lambda: self.now),
            clock=lambda: self.now,
        )

    def beat(
        self, address: str, role: Role = D, model: str | None = "m", **more: object
    ) -> None:
        """A heartbeat; it can give `parcel`."""
        parcel = more.pop("parcel", None)
        if isinstance(parcel, TextParcel):
            self.nodes.parcels.setdefault(address, parcel)
            more["text_digest"] = parcel.digest
        said = {"fingerprint": "f", "max_model_len": 100, "node_id": address, **more}
        one = Registration(role, address, "h:0", model=model, **said)  # type: ignore[arg-type]
        self.registry.apply(one, now=self.now)

    async def load(self) -> None:
        """What `run` does in one round."""
        for digest, addresses in self.catalogue.wanted().items():
            await self.texts.fetch(digest, addresses, now=self.now)

    async def find(
        self, name: str | None, *, text: bool = False, rid: str = "r"
    ) -> ServedModel:
        return await self.catalogue.find(name, rid, text=text)

"""One node of the cluster, as it was last heard of."""

from collections.abc import Callable
from dataclasses import dataclass, field

from discovery.kinds import Model
from discovery.registration import Load, Registration, Role


@dataclass(slots=True, eq=False)
class Node:
    """A node as last heard of. Only `hear` changes it: whoever holds it sees its latest load.

    `static`: added by hand; it is probed instead of heard. Equal only to itself.
    """

    registration: Registration
    heard_at: float
    static: bool = False
    node_id: str = field(init=False)

    def __post_init__(self) -> None:
        """Its own id, or the address of a vLLM node, which has none."""
        self.node_id = self.registration.node_id or self.registration.http_address

    def hear(self, registration: Registration, now: float) -> None:
        """Record a heartbeat in which nothing but the load may differ."""
        self.registration, self.heard_at = registration, max(self.heard_at, now)

    @property
    def address(self) -> str:
        """The address of its HTTP door, by which a registry stores it."""
        return self.registration.http_address

    @property
    def role(self) -> Role:
        """Prefill or decode."""
        return self.registration.type

    @property
    def face(self) -> tuple[str, int]:
        """Identifies a node in one role: its id, and how often it has changed its role."""
        return self.node_id, self.registration.turn

    @property
    def model(self) -> Model:
        """What it serves: only nodes with the same model work together."""
        return self.registration.model, self.registration.fingerprint

    @property
    def names(self) -> frozenset[str]:
        """All names of its model; empty if it registers none."""
        said = self.registration
        return frozenset(name for name in (said.model, *said.aliases) if name is not None)

    @property
    def load(self) -> Load:
        """The load that it last reported."""
        return self.registration.load

    @property
    def ours(self) -> bool:
        """Whether it is a pdserve node; otherwise it is vLLM's."""
        return self.registration.node_id is not None


Joins = Callable[[Node, Node], bool]
"""Whether the first node can be a partner of the second."""

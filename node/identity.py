"""Who this node is to others: the registration that its heartbeat and /server_info carry."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from discovery.registration import Load, Registration, Role, State
from engine.api import Engine, EngineLoad
from kv_transfer.layout import KvLayout
from node.ipc import Ready


def layout_of(engine: Engine) -> KvLayout:
    """How an engine's KV lies: one region for each rank."""
    info, regions = engine.info, engine.kv_regions
    return KvLayout(
        info.kv_dtype,
        info.block_size,
        info.kv_heads,
        tuple(region.block_bytes for region in regions),
        max(1, len(regions)),
        layers=info.kv_layers,
        parts=info.kv_parts,
        head_dim=info.head_dim,
    )


@dataclass(slots=True)
class Identity:
    """Fixed but for its role, its state and its load.

    `drained`: an operator wants it to take no new work. `wanted`: the role that it will have
    once it has nothing in flight. `stopping`: it was told to end.
    """

    registration: Registration
    drained: bool = False
    wanted: Role | None = None
    stopping: bool = False

    @property
    def role(self) -> Role:
        """What it is asked for."""
        return self.registration.type

    @property
    def state(self) -> State:
        """Whether it takes new work."""
        leaving = self.stopping or self.drained or self.wanted is not None
        return State.DRAINING if leaving else State.READY

    def take(self, role: Role) -> None:
        """Be this from now on; `turn` tells later words from earlier ones."""
        turn = self.registration.turn + 1
        self.registration = msgspec.structs.replace(self.registration, type=role, turn=turn)
        self.wanted = None

    @classmethod
    def of(
        cls,
        role: Role,
        node_id: str,
        names: Sequence[str],
        addresses: tuple[str, str],
        ready: Ready,
        text_digest: str | None = None,
    ) -> "Identity":
        """`names`: what its model is called, its own name first.

        `addresses`: where its HTTP door and its KV side channel are.
        """
        http_address, zmq_address = addresses
        return cls(
            Registration(
                role,
                http_address,
                zmq_address,
                node_id,
                names[0],
                ready.fingerprint,
                msgspec.json.decode(msgspec.json.encode(ready.kv_layout)),
                ready.max_model_len,
                aliases=tuple(names[1:]),
                text_digest=text_digest,
                kv_connector=ready.kv_connector,
                made_of=ready.made_of,
            )
        )

    def now(self, load: EngineLoad) -> Registration:
        """The heartbeat of this moment."""
        said = Load(load.waiting, load.running, load.free_blocks, load.total_blocks)
        return msgspec.structs.replace(self.registration, state=self.state, load=said)

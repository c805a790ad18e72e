"""The node's registration, which its heartbeats and /server_info carry."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import msgspec

from discovery.registration import Load, Registration, Role, State
from engine.api import Engine, EngineLoad
from kv_transfer.layout import KvLayout
from node.ipc import EngineReady


def layout_of(engine: Engine) -> KvLayout:
    """The layout of an engine's KV memory, with one region for each rank."""
    info, regions = engine.info, engine.kv_regions
    state = {} if info.state is None else asdict(info.state)
    return KvLayout(
        info.kv_dtype,
        info.block_size,
        info.kv_heads,
        tuple(region.block_bytes for region in regions),
        max(1, len(regions)),
        layers=info.kv_layers,
        parts=info.kv_parts,
        head_dim=info.head_dim,
        global_layers=info.global_layers,
        global_kv_heads=info.global_kv_heads,
        global_head_dim=info.global_head_dim,
        state_blocks=info.state_blocks,
        **{f"state_{name}": count for name, count in state.items()},
    )


@dataclass(slots=True)
class NodeIdentity:
    """The registration, of which only role, state and load change.

    `drained`: an operator wants it to take no new work. `next_role`: the role it changes to
    once nothing is in flight. `stopping`: it received a signal to stop.
    """

    registration: Registration
    drained: bool = False
    next_role: Role | None = None
    stopping: bool = False

    @property
    def role(self) -> Role:
        """The kind of leg that proxies send to it."""
        return self.registration.type

    @property
    def state(self) -> State:
        """READY while it takes new work, otherwise DRAINING."""
        leaving = self.stopping or self.drained or self.next_role is not None
        return State.DRAINING if leaving else State.READY

    def change_role(self, role: Role) -> None:
        """Change the role; `turn` lets proxies tell later registrations from earlier ones."""
        turn = self.registration.turn + 1
        self.registration = msgspec.structs.replace(self.registration, type=role, turn=turn)
        self.next_role = None

    @classmethod
    def of(
        cls,
        role: Role,
        node_id: str,
        names: Sequence[str],
        addresses: tuple[str, str],
        ready: EngineReady,
        text_digest: str | None = None,
    ) -> "NodeIdentity":
        """`names`: the names of its model, the model's own name first.

        `addresses`: those of its HTTP door and its KV side channel.
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
                adapters=ready.adapters,
                max_num_seqs=ready.max_num_seqs,
            )
        )

    def heartbeat(self, load: EngineLoad) -> Registration:
        """The registration with the current state and load."""
        current = Load(load.waiting, load.running, load.free_blocks, load.total_blocks)
        return msgspec.structs.replace(self.registration, state=self.state, load=current)

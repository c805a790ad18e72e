"""Who this node is to others: the registration that its heartbeat and /server_info carry."""

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
    """Fixed but for its state and load."""

    registration: Registration
    state: State = State.READY

    @classmethod
    def of(
        cls, role: Role, node_id: str, model: str, addresses: tuple[str, str], ready: Ready
    ) -> "Identity":
        """`addresses`: where its HTTP door and its KV side channel are."""
        http_address, zmq_address = addresses
        return cls(
            Registration(
                role,
                http_address,
                zmq_address,
                node_id,
                model,
                ready.fingerprint,
                msgspec.json.decode(msgspec.json.encode(ready.kv_layout)),
                ready.max_model_len,
            )
        )

    def now(self, load: EngineLoad) -> Registration:
        """The heartbeat of this moment."""
        said = Load(load.waiting, load.running, load.free_blocks, load.total_blocks)
        return msgspec.structs.replace(self.registration, state=self.state, load=said)

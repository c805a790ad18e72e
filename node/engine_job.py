"""What a node's engine process is told at its start, from the settings of the node."""

import logging

from discovery.registration import Role
from engine.settings import EngineConfig, read_speculative_config
from node.config import KV_PORTS, NodeConfig
from node.ipc import EngineProcessConfig

DECODE_NICENESS = 5  # where cores are shared, decode steps yield to prefill
log = logging.getLogger(__name__)


def engine_process_config(
    role: Role, config: NodeConfig, node_id: str, host: str
) -> EngineProcessConfig:
    """The job of a node's engine process; others reach the node by `host`."""
    engine = {name: getattr(config, name) for name in EngineConfig.__dataclass_fields__}
    engine["speculative_config"] = _speculation_of(role, config.speculative_config)
    return EngineProcessConfig(
        engine=EngineConfig(**engine),
        ipc_address=f"ipc://@pdserve-{node_id}",
        engine_id=node_id,
        connector=config.kv_connector,
        kv_host=config.host,
        kv_port=KV_PORTS[role] if config.kv_port is None else config.kv_port,
        advertise_host=host,
        log_level=config.log_level,
        kv_checksum=config.kv_checksum,
        kv_load_failure=config.kv_load_failure,
        niceness=niceness_of(role, config),
        cluster_key=config.cluster_key,
        lossy_log=config.supervisor_fd is not None,
    )


def _speculation_of(role: Role, settings: str | None) -> str | None:
    """A prefill node draws one token of an answer: it does not load a draft model.

    After a change of role it decodes without drafts.
    """
    if settings is None or role is not Role.PREFILL:
        return settings
    if not read_speculative_config(settings).has_draft_model:
        return settings
    log.info("a prefill node loads no draft model")
    return None


def niceness_of(role: Role, config: NodeConfig) -> int:
    """The niceness of its engine process, relative to its HTTP server's."""
    return DECODE_NICENESS if role is Role.DECODE and config.device == "cpu" else 0

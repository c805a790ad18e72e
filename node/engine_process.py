"""The engine process of a node: scheduler, weights, KV memory and KV transfers.

The door starts it and writes an EngineProcessConfig to its standard input, which stays open for
as long as the door lives.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

import msgspec
import zmq

from decode_node.worker import DecodeWorker
from discovery.garbage_collection import freeze_loaded_objects
from discovery.lifeline import die_with_parent, end_with, first_line
from discovery.logs import start_logging
from discovery.ports import listening_at
from engine.cache_events import CacheEvent
from engine.cores import usable_cores
from engine.errors import EngineError, RankLost
from engine.loading import open_engine
from engine.ranks.opening import refuse_ranks
from engine.running.device_locks import devices_of, lock_devices
from kv_transfer.checking import CheckLevel
from kv_transfer.factory import KvMemory, KvPort, build_connector, device_bytes
from kv_transfer.side_channel.port import open_port
from kv_transfer.thread.threaded import Connector
from node.core_sharing import engines_sharing_cores, threads_advice
from node.identity import layout_of
from node.ipc import (
    HEARTBEAT_S,
    DeclineLeg,
    EngineOutputs,
    EngineProcessConfig,
    EngineReady,
    EngineStartFailed,
    SetNiceness,
    SubmitLeg,
    SubmitPooling,
    decode_to_engine,
    encode,
)
from node.loop import LegEvent, NodeLoop
from node.niceness import set_niceness
from node.ranks import Ranks, start_ranks
from node.signed_introductions import SignedIntroductions
from prefill_node.worker import PrefillWorker

KV_PORT = "--kv-port; of pdserve up: --prefill-kv-ports, --decode-kv-ports"
WAITING_LEG_MS = 1  # poll interval while a leg waits for its grammar or a fetch
log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineServer:
    """Runs the NodeLoop on the door's messages, and sends its events to the door."""

    loop: NodeLoop
    connector: Connector
    door: "zmq.Socket[bytes]"
    door_niceness: int = 0
    ranks: Ranks | None = None
    last_sent_at: float = 0.0

    def run(self) -> None:
        """Serve forever: the process ends with the door, or with an error."""
        poller = zmq.Poller()
        poller.register(self.door, zmq.POLLIN)
        poller.register(self.connector.service.news_fd, zmq.POLLIN)
        while True:
            poller.poll(self.patience_ms)
            self.turn()

    @property
    def patience_ms(self) -> int:
        """How long to wait for news before the next turn."""
        if not self.loop.idle:
            return 0
        return WAITING_LEG_MS if self.loop.has_waiting_legs else round(HEARTBEAT_S * 1000)

    def turn(self) -> None:
        """Read messages, run a batch, send events; tickets are sent before the batch runs."""
        self._read()
        self.connector.service.clear_news()
        self.connector.check()
        self._send_events(self.loop.prepare())
        self._send_events(self.loop.run(), self.loop.cache_events)
        if time.monotonic() - self.last_sent_at >= HEARTBEAT_S:
            self._send([])

    def _read(self) -> None:
        while self.door.poll(0):
            message = decode_to_engine(self.door.recv())
            if isinstance(message, SubmitLeg):
                self._send_events(self.loop.submit(message.request, message.leg, message.since))
            elif isinstance(message, SubmitPooling):
                self._send_events(self.loop.pool(message.request, message.since))
            elif isinstance(message, DeclineLeg):
                self.loop.decline(message.leg)
            elif isinstance(message, SetNiceness):
                self._renice(message.niceness)
            else:
                self.loop.abort(message.request_id)

    def _renice(self, niceness: int) -> None:
        if self.ranks is not None:
            self.ranks.set_niceness(self.door_niceness + niceness)
        if not set_niceness(self.door_niceness + niceness):
            log.warning("may not give way less to others: that takes CAP_SYS_NICE")

    def _send_events(
        self, events: Sequence[LegEvent], cache_events: Sequence[CacheEvent] = ()
    ) -> None:
        if events or cache_events:
            self._send(list(events), cache_events)

    def _send(self, events: list[LegEvent], cache_events: Sequence[CacheEvent] = ()) -> None:
        self.last_sent_at = time.monotonic()
        service = self.connector.service
        load, failures, late_s = self.loop.load, self.loop.load_failures, service.late_s
        more = tuple(cache_events), service.refused_connections
        outputs = EngineOutputs(events, load, failures, late_s, *more)
        self.door.send(encode(outputs))


def main() -> None:
    """Load the model, report it, and serve until the door closes our standard input."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        # a terminal signals all processes; the door drains
        signal.signal(number, signal.SIG_IGN)
    door_pid = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: _forward_stop(door_pid))
    job = msgspec.json.decode(first_line(sys.stdin.fileno()), type=EngineProcessConfig)
    end_with(sys.stdin.fileno())
    door_niceness = os.nice(0)
    set_niceness(door_niceness + job.niceness)
    start_logging(job.log_level, lossy=job.lossy_log)
    door = zmq.Context[zmq.Socket[bytes]]().socket(zmq.PAIR)
    door.setsockopt(zmq.SNDHWM, 0)
    door.connect(job.ipc_address)
    try:
        server = _load(job, door, door_niceness)
    except (EngineError, OSError, ImportError, ValueError, RuntimeError, zmq.ZMQError) as error:
        log.error("the engine cannot start: %s", error)
        door.send(encode(EngineStartFailed(str(error))))
        door.close(linger=1000)
        sys.exit(1)
    freeze_loaded_objects()
    try:
        server.run()
    except RankLost as error:
        log.error("the engine ends: %s", error)
        sys.exit(1)


def _forward_stop(door_pid: int) -> None:
    """Pass SIGTERM on to the door, which drains: a SIGTERM to this process is meant for the
    node.

    It is passed on as SIGHUP, which the door does not count as a second signal if it has
    received a SIGTERM itself.
    """
    if os.getppid() == door_pid:
        os.kill(door_pid, signal.SIGHUP)


def _load(
    job: EngineProcessConfig, door: "zmq.Socket[bytes]", door_niceness: int
) -> EngineServer:
    ranks = None
    with listening_at(job.kv_port, KV_PORT):  # before anything that takes long
        held = open_port(job.kv_host, job.kv_port)
    if job.engine.tensor_parallel_size > 1:
        refuse_ranks(job.engine)
    with lock_devices(devices_of(job.engine), Path(gettempdir())):
        if job.engine.tensor_parallel_size > 1:
            ranks = start_ranks(job)
        beside = device_bytes(job.connector)
        engine = open_engine(
            job.engine, ranks.followers if ranks else None, transfer_bytes=beside
        )
    layout, level = layout_of(engine), CheckLevel.named(job.kv_checksum)
    memory = KvMemory(engine.info.fingerprint, layout, engine.kv_regions, level)
    names = SignedIntroductions(job.cluster_key.encode()) if job.cluster_key else None
    connector = build_connector(
        job.connector,
        job.engine_id,
        memory,
        KvPort(job.kv_host, job.kv_port, job.advertise_host, names, held),
        ranks.movers if ranks else (),
    )
    connector.start()
    prefill = PrefillWorker(engine, connector.source, time.monotonic)
    recompute = job.kv_load_failure == "recompute"
    decode = DecodeWorker(engine, connector.sink, time.monotonic, recompute)
    loop = NodeLoop(engine, prefill, decode)
    info, port = engine.info, connector.service.identity.port
    if advice := threads_advice(job.engine, engines_sharing_cores(), usable_cores()):
        log.warning(advice)
    facts = info.fingerprint, layout, info.max_model_len, port, loop.load, info.pooling
    more = job.connector, info.made_of, info.adapters, job.engine.max_num_seqs, info.dtype
    door.send(encode(EngineReady(*facts, *more)))
    return EngineServer(loop, connector, door, door_niceness, ranks)


if __name__ == "__main__":
    main()

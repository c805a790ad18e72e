"""The engine half of a node: scheduler, weights, KV memory and transfers, in its own process.

It is told its job on standard input, which stays open for as long as the door lives.
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
from discovery.lifeline import die_with_parent, end_with, first_line
from discovery.logs import start_logging
from discovery.ports import listening_at
from engine.errors import EngineError, RankLost
from engine.loading import open_engine
from engine.ranks.opening import refuse_ranks
from engine.running.turns import alone_on, devices_of
from kv_transfer.checking import Level
from kv_transfer.factory import KvMemory, KvPort, build_connector, device_bytes
from kv_transfer.side_channel.port import open_port
from kv_transfer.thread.threaded import Connector
from node.identity import layout_of
from node.ipc import (
    BEAT_S,
    EngineJob,
    News,
    Pool,
    Ready,
    Refused,
    Renice,
    Submit,
    decode_to_engine,
    encode,
)
from node.keyed_names import KeyedNames
from node.loop import News as LoopNews
from node.loop import NodeLoop
from node.neighbours import advice, engines_beside
from node.niceness import set_niceness
from node.ranks import Ranks, start_ranks
from prefill_node.worker import PrefillWorker

KV_PORT = "--kv-port; of pdserve up: --prefill-kv-ports, --decode-kv-ports"
EARLY_MS = 1  # between looks at a grammar that is being compiled
log = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineServer:
    """Turns the node's loop, and carries its news to the door."""

    loop: NodeLoop
    connector: Connector
    door: "zmq.Socket[bytes]"
    doors_niceness: int = 0
    ranks: Ranks | None = None
    last_word: float = 0.0

    def run(self) -> None:
        """For good: the process ends with the door, or with an error."""
        poller = zmq.Poller()
        poller.register(self.door, zmq.POLLIN)
        poller.register(self.connector.service.news_fd, zmq.POLLIN)
        while True:
            rest_ms = EARLY_MS if self.loop.is_early else round(BEAT_S * 1000)
            poller.poll(rest_ms if self.loop.idle else 0)
            self.turn()

    def turn(self) -> None:
        """Calls in, a batch, news out; tickets leave before the batch runs."""
        self._read()
        self.connector.service.clear_news()
        self.connector.check()
        self._tell(self.loop.prepare())
        self._tell(self.loop.run())
        if time.monotonic() - self.last_word >= BEAT_S:
            self._send([])

    def _read(self) -> None:
        while self.door.poll(0):
            message = decode_to_engine(self.door.recv())
            if isinstance(message, Submit):
                self._tell(self.loop.submit(message.request, message.leg, message.since))
            elif isinstance(message, Pool):
                self._tell(self.loop.pool(message.request, message.since))
            elif isinstance(message, Renice):
                self._renice(message.niceness)
            else:
                self.loop.abort(message.request_id)

    def _renice(self, niceness: int) -> None:
        if self.ranks is not None:
            self.ranks.set_niceness(self.doors_niceness + niceness)
        if not set_niceness(self.doors_niceness + niceness):
            log.warning("may not give way less to others: that takes CAP_SYS_NICE")

    def _tell(self, events: Sequence[LoopNews]) -> None:
        if events:
            self._send(list(events))

    def _send(self, events: list[LoopNews]) -> None:
        self.last_word = time.monotonic()
        late_s = self.connector.service.late_s
        news = News(events, self.loop.load, self.loop.load_failures, late_s)
        self.door.send(encode(news))


def main() -> None:
    """Load, say so, and serve until the door closes our standard input."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal tells all of us; the door drains
    door_pid = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(door_pid))
    job = msgspec.json.decode(first_line(sys.stdin.fileno()), type=EngineJob)
    end_with(sys.stdin.fileno())
    doors_niceness = os.nice(0)
    set_niceness(doors_niceness + job.niceness)
    start_logging(job.log_level, lossy=job.lossy_log)
    door = zmq.Context[zmq.Socket[bytes]]().socket(zmq.PAIR)
    door.setsockopt(zmq.SNDHWM, 0)
    door.connect(job.ipc_address)
    try:
        server = _load(job, door, doors_niceness)
    except (EngineError, OSError, ImportError, ValueError, RuntimeError, zmq.ZMQError) as error:
        log.error("the engine cannot start: %s", error)
        door.send(encode(Refused(str(error))))
        door.close(linger=1000)
        sys.exit(1)
    try:
        server.run()
    except RankLost as error:
        log.error("the engine ends: %s", error)
        sys.exit(1)


def _pass_on(door_pid: int) -> None:
    """Who tells this process to stop means its node, whose door drains; by a signal that does
    not count as its second, should the door have been told as well.
    """
    if os.getppid() == door_pid:
        os.kill(door_pid, signal.SIGHUP)


def _load(job: EngineJob, door: "zmq.Socket[bytes]", doors_niceness: int) -> EngineServer:
    ranks = None
    with listening_at(job.kv_port, KV_PORT):  # before what takes long
        held = open_port(job.kv_host, job.kv_port)
    if job.engine.tensor_parallel_size > 1:
        refuse_ranks(job.engine)
    with alone_on(devices_of(job.engine), Path(gettempdir())):
        if job.engine.tensor_parallel_size > 1:
            ranks = start_ranks(job)
        beside = device_bytes(job.connector)
        engine = open_engine(job.engine, ranks.crew if ranks else None, beside_bytes=beside)
    layout, level = layout_of(engine), Level.named(job.kv_checksum)
    memory = KvMemory(engine.info.fingerprint, layout, engine.kv_regions, level)
    names = KeyedNames(job.cluster_key.encode()) if job.cluster_key else None
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
    if said := advice(job.engine, engines_beside(), len(os.sched_getaffinity(0))):
        log.warning(said)
    facts = info.fingerprint, layout, info.max_model_len, port, loop.load, info.pooling
    door.send(encode(Ready(*facts, job.connector, info.made_of)))
    return EngineServer(loop, connector, door, doors_niceness, ranks)


if __name__ == "__main__":
    main()

"""A draft head under whatever meets: each draft is the reference's, each answer the model's.

Turns of chats, prompts in parts, preemption, aborts, hand-overs, a lower tier, and another
node's cache; drawn from a seed, so a failure is replayed.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.request import Request, RequestId, Sampling
from engine.scheduling.drafting import Pace
from engine.tiers.book import TierBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.tiers import Tiers
from engine.torch_engine import TorchEngine
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.draft_heads import LAYERS, Compared, Reference, headed, make_head_checkpoint
from tests.fakes.driver import assert_idle, copy_blocks, drain, eager, load, move, park

LONGEST, MOST, BLOCK = 100, 20, 4


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its head knows nothing, so that a draft tells all that it was made from."""
    return make_head_checkpoint(tmp_path_factory.mktemp("strange"), "glm4_moe")


class Play:
    """Everything that a seed decides."""

    def __init__(
        self,
        seed: int,
        made: Path,
        reference: Reference,
        plain: TorchEngine,
        *,
        on_devices: bool,
    ) -> None:
        self.random, self.plain, self.on_devices = Random(seed), plain, on_devices
        self.chats: list[tuple[int, ...]] = []
        self.asked, self.judges = 0, list[Compared]()
        self.nodes = [self._node(made, reference) for _ in range(2)]

    def _node(self, made: Path, reference: Reference) -> TorchEngine:
        random = self.random
        token_bytes = self.plain.kv_regions[0].block_bytes // self.plain.info.block_size
        block_bytes = BLOCK * token_bytes * (LAYERS + 1) // LAYERS
        settings: dict[str, Any] = {
            "block_size": BLOCK,
            "max_model_len": LONGEST + MOST,
            "max_num_batched_tokens": random.choice([9, 32, 64]),
            "max_num_seqs": random.choice([2, 4]),
            "kv_cache_memory_bytes": random.choice([34, 50, 120]) * block_bytes,
        }
        if self.on_devices:
            head = headed(random.choice([1, 3]), disable_by_batch_size=random.choice([1, 2, 4]))
            engine = on_device(made, FakeAccelerator(draws=True), **settings, **head)
        else:
            engine = load(made, **settings, **headed(random.choice([1, 3])))
        if random.random() < 0.5:
            blocks, slots = engine.memory.bytes_of_blocks, random.choice([10, 100])
            book = TierBook(HostBook(slots), blocks.shape[1])
            host = HostMemory(blocks, slots)
            engine.attach_tiers(Tiers(book, host, None, clock=lambda: 0.0))
        self.judges.append(Compared.watch(engine, reference))
        return eager(engine)

    def requests(self) -> Iterator[Request]:
        """Turns of different chats."""
        random = self.random
        for before in random.sample(self.chats, min(len(self.chats), random.randint(0, 2))):
            self.chats.remove(before)
            yield self._request(before)
        for _ in range(random.randint(1, 3)):
            yield self._request(())

    def _request(self, before: tuple[int, ...]) -> Request:
        new = tuple(self.random.randrange(384) for _ in range(self.random.randint(1, 50)))
        self.asked += 1
        sampling = Sampling(self.random.randint(1, MOST), temperature=0, ignore_eos=True)
        prompt = (*before, *new)[:LONGEST]
        return Request(RequestId(str(self.asked)), prompt, sampling)

    def alone(self, request: Request) -> list[int]:
        """What the model says without a head and without company."""
        self.plain.generate(request)
        self.plain.schedule()
        return drain(self.plain)[request.request_id]

    def serve(self) -> None:
        """Some requests on one node, one of which may be aborted."""
        node, asked = self.random.choice(self.nodes), list(self.requests())
        for one in asked:
            node.generate(one)
        gone = self.random.choice(asked).request_id if self.random.random() < 0.3 else None
        left, said = self.random.randint(1, 8), dict[RequestId, list[int]]()
        while node.load.waiting or node.load.running:
            node.schedule()
            for new in node.step().sampled:
                said.setdefault(new.request_id, []).extend(new.tokens)
            left -= 1
            if not left and gone in node.scheduler.sequences.known:
                node.release(gone)
                said.pop(gone, None)
        for one in asked:
            if one.request_id in said:
                self.check(one, said[one.request_id])

    def hand_over(self) -> None:
        """A prompt at one node, its answer at the other."""
        source, sink = self.random.sample(self.nodes, 2)
        request = next(self.requests())
        first = park(source, [request])[request.request_id]
        move(source, sink, request)
        sink.resume(request.request_id, [first])
        sink.schedule()
        self.check(request, [first, *drain(sink).get(request.request_id, [])])

    def lend(self) -> None:
        """Blocks of one node's cache go to the other's."""
        ours, theirs = self.random.sample(self.nodes, 2)
        if not self.chats:
            return
        keys = ours.keys(Request(RequestId("chat"), self.random.choice(self.chats)))
        lent = ours.lend("loan", keys)
        have = min(theirs.known(keys), len(lent))
        if have < len(lent):
            room = theirs.borrow("loan", keys[: len(lent)], have)
            if room is not None:
                copy_blocks(ours, theirs, zip(lent[have:], room, strict=True))
                theirs.keep("loan")
        if lent:
            ours.give_back("loan")

    def check(self, request: Request, said: list[int]) -> None:
        assert said == self.alone(request)
        if len(request.prompt) + len(said) < LONGEST:
            self.chats.append((*request.prompt, *said))


@pytest.mark.parametrize("on_devices", [False, True])
@pytest.mark.parametrize("first", range(0, 20, 5))
def test_each_draft_is_made_from_all_that_was_said(
    first: int, strange: Path, monkeypatch: pytest.MonkeyPatch, *, on_devices: bool
) -> None:
    """On devices, steps are launched ahead while drafts pause."""
    monkeypatch.setattr(Pace, "allowed", lambda pace, _seq, most: max(0, min(pace.most, most)))
    reference, plain = Reference.of(strange), load(strange, enable_prefix_caching=False)
    drafts = 0
    for seed in range(first, first + 5):
        play = Play(seed, strange, reference, plain, on_devices=on_devices)
        for _ in range(12):
            play.random.choice([play.serve, play.serve, play.hand_over, play.lend])()
        for node in play.nodes:
            assert_idle(node)
        drafts += sum(judge.drafts for judge in play.judges)
    assert drafts > 100

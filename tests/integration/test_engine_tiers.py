"""A real model over tiers: the same tokens, with KV memory as small as can be."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.cache_events import CacheEvent, Medium
from engine.errors import UnusableTier
from engine.request import Request, Sampling
from engine.stepping.ahead import AheadStepper
from engine.tiers.book import TierBook
from engine.tiers.host_book import HostBook
from engine.tiers.host_memory import HostMemory
from engine.tiers.opening import staging_slots
from engine.tiers.tiers import Tiers
from engine.torch_engine import TorchEngine
from tests.fakes.cache_index import CacheIndex
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import assert_idle, load, prompt, requests, run

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]
SAMPLINGS = {
    "greedy": Sampling(max_tokens=20, temperature=0, ignore_eos=True),
    "seeded": Sampling(max_tokens=20, temperature=0.9, top_p=0.95, seed=11, logprobs=2),
}


def ahead(llama: Path, **settings: object) -> TorchEngine:
    """Whose decode steps are begun before they are chosen, as on a GPU."""
    engine = on_device(llama, accelerator=FakeAccelerator(draws=True), **settings)
    assert isinstance(engine.stepper, AheadStepper)
    return engine


def tight(llama: Path, slots: int, load: Callable[..., TorchEngine] = load) -> TorchEngine:
    """Blocks for one sequence and a bit, and a tier of host memory that is as on a GPU."""
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    engine = load(
        llama, max_model_len=110, block_size=4, kv_cache_memory_bytes=112 * token_bytes
    )
    blocks = engine.memory.bytes_of_blocks
    book = TierBook(HostBook(slots), blocks.shape[1])
    engine.attach_tiers(Tiers(book, HostMemory(blocks, slots), None, clock=lambda: 0.0))
    return engine


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("slots", [20, 200])
def test_preempted_blocks_come_back_by_copy_and_nothing_changes(
    llama: Path, sampling: Sampling, slots: int
) -> None:
    asked = requests(PROMPTS, sampling)
    alone = load(llama, enable_prefix_caching=False)
    engine = tight(llama, slots)
    assert run(engine, asked) == [run(alone, [request])[0] for request in asked]
    assert engine.load.preemptions > 0
    assert engine.load.tiers[0].loaded > 0
    assert_idle(engine)


def test_an_evicted_prompt_is_known_again(llama: Path) -> None:
    engine = tight(llama, slots=200)
    longest, other = requests([PROMPTS[-1], prompt(90, seed=7)])
    run(engine, [longest])
    run(engine, [other])
    engine.generate(longest)
    (admitted,) = engine.schedule()
    assert admitted.cached_tokens == 88


def test_the_log_tells_where_each_block_is(llama: Path, tmp_path: Path) -> None:
    """Also after a restart, of blocks that the last run left on disk, once they are used."""
    longest, other = requests([PROMPTS[-1], prompt(90, seed=7)])
    for restarts in range(2):
        engine, index = disked(llama, tmp_path), CacheIndex(4)
        engine.log_cache_events()
        for asked in (longest, other, longest):
            for event in told(engine, asked):
                index.hear(event)
        assert engine.tiers is not None
        book = engine.tiers.book
        assert book.disk is not None
        on_disk = {*book.disk._place_of}
        assert {*index.held[Medium.HOST_MEMORY]} == {*book.host._slot_of}
        assert index.held[Medium.DISK]
        assert index.held[Medium.DISK].keys() <= on_disk
        assert restarts or index.held[Medium.DISK].keys() == on_disk
        close(engine)


def told(engine: TorchEngine, asked: Request) -> list[CacheEvent]:
    """What the log says until the request is answered, and the disk has nothing to do."""
    engine.generate(asked)
    engine.schedule()
    events = list[CacheEvent]()
    assert engine.tiers is not None
    book = engine.tiers.book
    while engine.load.waiting or engine.load.running or book._writing or book._arriving:
        events += engine.step().cache_events
        engine.schedule()
    return [*events, *engine.step().cache_events]


def test_what_a_step_begun_ahead_makes_room_for_is_kept_as_it_was(llama: Path) -> None:
    """Its block is taken and written to before the scheduler has chosen that step."""
    first, long = requests([PROMPTS[-1], PROMPTS[0]], SAMPLINGS["greedy"])
    long = replace(long, sampling=replace(long.sampling, max_tokens=100))
    alone = load(llama, enable_prefix_caching=False)
    expected = [run(alone, [one])[0] for one in (first, long)]
    engine = tight(llama, slots=200, load=ahead)
    assert run(engine, [first]) == expected[:1]
    assert run(engine, [long]) == expected[1:]
    assert run(engine, [first]) == expected[:1]
    assert engine.load.tiers[0].loaded > 0


def disked(llama: Path, path: Path, **settings: object) -> TorchEngine:
    """Blocks for one sequence and a bit, over a disk."""
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    small = {
        "max_model_len": 110,
        "block_size": 4,
        "kv_cache_memory_bytes": 112 * token_bytes,
        "kv_disk_path": str(path),
        "kv_disk_size": 0.001,
    }
    return load(llama, **{**small, **settings})


def close(engine: TorchEngine) -> None:
    assert engine.tiers is not None
    engine.tiers.close()


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_restart_finds_what_was_evicted_and_says_the_same(
    llama: Path, sampling: Sampling, tmp_path: Path
) -> None:
    asked = requests(PROMPTS, sampling)
    alone = load(llama, enable_prefix_caching=False)
    golden = [run(alone, [request])[0] for request in asked]
    for restarts in range(3):
        engine = disked(llama, tmp_path)
        assert run(engine, asked) == golden
        close(engine)
        assert engine.load.tiers[1].loaded > 0 or restarts == 0
        assert_idle(engine)


def test_blocks_of_another_size_or_type_are_never_read(llama: Path, tmp_path: Path) -> None:
    asked = requests(PROMPTS)
    first = disked(llama, tmp_path)
    run(first, asked)
    close(first)
    for other in ({"block_size": 8}, {"dtype": "bfloat16"}):
        engine = disked(llama, tmp_path, **other)
        assert engine.load.tiers[1].blocks == 0
        close(engine)
    again = disked(llama, tmp_path)
    assert again.load.tiers[1].blocks > 0
    close(again)


def test_memory_below_memory_is_refused(llama: Path) -> None:
    with pytest.raises(UnusableTier, match="--kv-offloading-size"):
        load(llama, kv_offloading_size=1.0)


@pytest.mark.parametrize(
    ("num_blocks", "longest", "slots"),
    [(20, 10, 16), (100, 30, 50), (100, 10, 20), (800, 10, 100)],
)
def test_what_goes_to_disk_and_back_has_room_for_two_of_the_longest(
    num_blocks: int, longest: int, slots: int
) -> None:
    assert staging_slots(num_blocks, longest) == slots

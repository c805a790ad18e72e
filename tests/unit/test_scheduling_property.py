"""Whatever comes in any order: the same tokens as alone, no block lost, nobody forgotten."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.request import Request, RequestId, Sampling
from tests.fakes.drafter import Oracle
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone

LONGEST = 28


@dataclass(frozen=True)
class Arrival:
    """A request, and how it comes; `stops_at`: this token of its answer ends it."""

    prompt: tuple[int, ...]
    answer: int
    stops_at: int | None
    priority: int
    way: str


arrivals = st.builds(
    Arrival,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=20).map(tuple),
    answer=st.integers(1, 8),
    stops_at=st.none() | st.integers(0, 7),
    priority=st.integers(-1, 1),
    way=st.sampled_from(["generate", "prefill", "reserve", "retry"]),
)
events = st.lists(
    st.one_of(
        arrivals,
        st.sampled_from(["turn", "resume", "sample again", "release", "abort"]),
    ),
    max_size=40,
)
limits = st.fixed_dictionaries(
    {
        "chunk": st.integers(1, 64),
        "seats": st.integers(1, 8),
        "block_size": st.sampled_from([1, 2, 4]),
        "watermark": st.sampled_from([None, 0, 1]),
    }
)


@dataclass
class Watcher:
    """Hands in, reads what comes, and remembers what has to be true of it."""

    engine: FakeEngine
    answers: dict[RequestId, list[int]] = field(default_factory=dict)
    asked: dict[RequestId, Request] = field(default_factory=dict)
    refused: list[Request] = field(default_factory=list)
    told: dict[RequestId, list[int]] = field(default_factory=dict)
    came: int = 0

    def come(self, came: Arrival) -> None:
        self.came += 1
        name = RequestId(f"{self.came} {came.way}")
        sampling = Sampling(came.answer, seed=self.came)
        request = Request(name, came.prompt, sampling, priority=came.priority)
        if came.stops_at is not None:
            ends = tuple(alone(request)[came.stops_at :][:1])
            request = replace(request, sampling=replace(sampling, stop_token_ids=ends))
        if came.way == "retry":  # the rest of an answer that began elsewhere
            request = replace(request, generated=tuple(alone(request)[:-1]))
        self.asked[name], self.answers[name] = request, []
        if came.way == "prefill":
            self.engine.prefill(request)
        elif came.way == "reserve":
            self.refused.append(request)
        else:
            self.engine.generate(request)

    def turn(self) -> int:
        while self.refused and self.engine.reserve(self.refused[0]):
            self.refused.pop(0)
        self.engine.schedule()
        result = self.engine.step()
        for filled in result.filled:
            final = filled.num_tokens // self.engine.info.block_size
            self.told[filled.request_id] = list(self.engine.blocks(filled.request_id)[:final])
        for name, blocks in self.told.items():
            assert list(self.engine.blocks(name))[: len(blocks)] == blocks
            assert self.engine.holds_prompt(name, len(blocks))
        for sampled in result.sampled:
            self.answers[sampled.request_id] += sampled.tokens
        return result.num_tokens

    def resume(self, *, sample_again: bool) -> None:
        for name in list(self.engine.sequences.reserved)[:1]:
            self.engine.fetch(name)
            first = [] if sample_again else alone(self.asked[name])[:1]
            for sampled in self.engine.resume(name, first):
                self.answers[name] += sampled.tokens

    def release(self) -> None:
        for name in list(self.engine.sequences.parked)[:1]:
            assert self.answers[name] == alone(self.asked[name])[:1]
            self._forget(name)

    def abort(self) -> None:
        for name in list(self.engine.sequences.known)[-1:]:
            self._forget(name)

    def _forget(self, name: RequestId) -> None:
        self.told.pop(name, None)
        del self.asked[name], self.answers[name]
        self.engine.release(name)

    def finish(self) -> int:
        """Until nobody is there; how many turns it took."""
        turns = 0
        while self.engine.sequences.known or self.refused:
            turns += 1
            assert turns < self.patience, "somebody starves"
            idle = self.turn() == 0
            self.resume(sample_again=False)
            if idle:  # others take what is parked, sooner or later
                self.release()
        return turns

    @property
    def patience(self) -> int:
        """Every token in a batch of its own, and preemptions as many times again."""
        return 20 + 4 * sum(len(one.prompt) + 10 for one in self.asked.values())


def play(engine: FakeEngine, happens: list[Arrival | str]) -> None:
    watcher = Watcher(engine)
    calls: dict[str, Callable[[], object]] = {
        "turn": watcher.turn,
        "resume": lambda: watcher.resume(sample_again=False),
        "sample again": lambda: watcher.resume(sample_again=True),
        "release": watcher.release,
        "abort": watcher.abort,
    }
    for event in happens:
        if isinstance(event, Arrival):
            watcher.come(event)
        else:
            calls[event]()
    watcher.finish()
    for name, answer in watcher.answers.items():
        assert answer == alone(watcher.asked[name])
    engine.sequences.check_idle()
    engine.kv.check()
    assert engine.load.free_blocks == engine.load.total_blocks


def engine_for(limits: dict[str, int], spare: int) -> FakeEngine:
    return FakeEngine(blocks=-(-LONGEST // limits["block_size"]) + spare, **limits)


@settings(max_examples=300, deadline=None)
@given(happens=events, limits=limits, spare=st.integers(0, 8))
def test_whatever_happens_the_tokens_are_the_same(
    happens: list[Arrival | str], limits: dict[str, int], spare: int
) -> None:
    play(engine_for(limits, spare), happens)


@settings(max_examples=300, deadline=None)
@given(happens=events, limits=limits, spare=st.integers(0, 8), data=st.data())
def test_whatever_is_foretold_the_tokens_are_the_same(
    happens: list[Arrival | str],
    limits: dict[str, int],
    spare: int,
    data: st.DataObject,
) -> None:
    engine, up_to_four = engine_for(limits, spare), st.integers(0, 4)
    oracle = Oracle(lambda: data.draw(up_to_four), lambda: data.draw(up_to_four))
    engine.scheduler.drafter = oracle
    play(engine, happens)
    load = engine.load
    assert (load.draft_tokens, load.accepted_tokens) == tuple(
        sum(numbers) for numbers in zip((0, 0), *oracle.judged, strict=True)
    )


def test_plays_of_many_at_once_with_drafts_leave_the_tokens_the_same_too() -> None:
    """What Hypothesis thinks of is short: few decode at once there, and few give way."""
    for seed in range(60):
        _play_at_random(Random(seed))


def _play_at_random(random: Random) -> None:
    chunk, block_size = random.choice([3, 8, 16]), random.choice([1, 2, 4])
    limits = {"chunk": chunk, "seats": 6, "block_size": block_size}
    engine = engine_for(limits, spare=random.randint(0, 12))
    engine.scheduler.drafter = Oracle(
        lambda: random.randint(0, 4), lambda: random.randint(0, 4)
    )
    play(engine, [_event(random) for _ in range(60)])


def _event(random: Random) -> Arrival | str:
    if random.random() < 0.5:
        return random.choice(["turn"] * 8 + ["resume", "sample again", "release", "abort"])
    prompt = tuple(random.choices([0, 1], k=random.randint(1, 20)))
    stops_at, way = random.choice([None, None, 3]), ["generate", "prefill", "reserve", "retry"]
    return Arrival(
        prompt, random.randint(1, 8), stops_at, random.randint(-1, 1), random.choice(way)
    )

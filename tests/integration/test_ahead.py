"""Decode steps that are begun before the last tokens are read say what the CPU's do."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
from engine.kernels.gpu.sampling.choosing import choose
from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
from engine.kernels.sampling import SamplingKernels
from engine.request import Grammar, Logprob, Request, RequestId, Sampling
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.device import FakeAccelerator, on_device
from tests.fakes.driver import (
    assert_idle,
    drain,
    eager,
    load,
    move,
    park,
    prompt,
    requests,
    run,
)

GREEDY = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
SEEDED = replace(GREEDY, temperature=0.9, top_k=60, top_p=0.95, min_p=0.001, seed=5)
PENALISED = replace(SEEDED, repetition_penalty=1.2)
ALL_PENALTIES = replace(
    GREEDY, repetition_penalty=0.8, frequency_penalty=0.7, presence_penalty=-0.4
)
BOUND = replace(SEEDED, repetition_penalty=1.2, logit_bias=((5, 2.0),))
GRAMMAR = replace(PENALISED, grammar=Grammar("regex", "[a-z0-9]{2,20}"))
LOGPROBS = replace(GREEDY, logprobs=1)
FEW_LOGPROBS, MANY_LOGPROBS = replace(SEEDED, logprobs=0), replace(PENALISED, logprobs=32)
PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 64, 90)]


def ahead(
    llama: Path, drawing: SamplingKernels | None = None, **settings: object
) -> tuple[TorchEngine, FakeAccelerator]:
    accelerator = FakeAccelerator(draws=True)
    accelerator.drawing = drawing or accelerator.drawing
    engine = on_device(llama, accelerator=accelerator, **settings)
    assert isinstance(engine.stepper, AheadStepper)
    accelerator.begin_anew()
    return engine, accelerator


def asked(*samplings: Sampling) -> list[Request]:
    """Each prompt; answers of unlike lengths, so that rows end at different times."""
    return [
        replace(
            request,
            sampling=replace(samplings[at % len(samplings)], max_tokens=3 + 5 * at % 13),
        )
        for at, request in enumerate(requests(PROMPTS))
    ]


@pytest.mark.parametrize(
    "samplings",
    [
        (GREEDY,),
        (SEEDED,),
        (PENALISED, ALL_PENALTIES, SEEDED),
        (GREEDY, SEEDED, PENALISED, LOGPROBS, BOUND, ALL_PENALTIES),
    ],
    ids=["greedy", "seeded", "penalised", "mixed"],
)
@pytest.mark.parametrize("seats", [2, 7])
def test_the_tokens_are_the_same(
    llama: Path, samplings: tuple[Sampling, ...], seats: int
) -> None:
    expected = run(load(llama), asked(*samplings))
    engine, _ = ahead(llama, max_num_seqs=seats, block_size=3, max_num_batched_tokens=40)
    assert run(engine, asked(*samplings)) == expected


@pytest.mark.parametrize("penalty", [-2.0, 2.0])
def test_a_first_token_that_only_the_device_knows_counts(llama: Path, penalty: float) -> None:
    """The step that ends a prompt of one token is one of decode, and foreseen as such."""
    sampling = replace(GREEDY, frequency_penalty=penalty, presence_penalty=penalty)
    one = [replace(request, sampling=sampling) for request in requests(PROMPTS[:1])]
    engine, _ = ahead(llama)
    assert run(engine, one) == run(load(llama), one)


def told(engine: TorchEngine, asking: list[Request]) -> dict[RequestId, list[Logprob]]:
    """All that is said of tokens and what might have come instead."""
    for request in asking:
        engine.generate(request)
    engine.schedule()
    said = dict[RequestId, list[Logprob]]()
    while engine.load.waiting or engine.load.running:
        for one in engine.step().sampled:
            assert bool(one.logprobs) is (asking[0].sampling.logprobs is not None)
            assert all(row[0].token in one.tokens for row in one.logprobs)
            said.setdefault(one.request_id, []).extend(sum(one.logprobs, ()))
        engine.schedule()
    return said


@pytest.mark.parametrize("sampling", [LOGPROBS, FEW_LOGPROBS, MANY_LOGPROBS])
def test_log_probabilities_are_told_of_steps_begun_ahead(
    llama: Path, sampling: Sampling
) -> None:
    """As the model found tokens, before penalties; no row knows of another's wish."""
    expected = told(load(llama), asked(sampling))
    engine, accelerator = ahead(llama, max_num_seqs=4)
    found = told(engine, asked(sampling))
    assert accelerator.told[2] == "begin 2"  # before what the first step told is read
    assert found.keys() == expected.keys()
    for name, ours in found.items():
        for one, other in zip(ours, expected[name], strict=True):
            assert (one.token, one.rank) == (other.token, other.rank)
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_rows_that_ask_for_unlike_many_are_told_so(llama: Path) -> None:
    engine, _ = ahead(llama)
    for request in requests(PROMPTS[:2], LOGPROBS) + requests(PROMPTS[2:3], GREEDY):
        engine.generate(replace(request, request_id=RequestId(str(len(request.prompt)))))
    few, many = requests(PROMPTS[3:5], replace(GREEDY, logprobs=3))
    engine.generate(replace(few, request_id=RequestId("few")))
    engine.generate(
        replace(many, request_id=RequestId("all"), sampling=replace(GREEDY, logprobs=-1))
    )
    wide = engine.decoder.config.vocab_size
    widths = {"1": 2, "5": 2, "16": 0, "few": 4, "all": 1 + wide}
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        for one in engine.step().sampled:
            assert sum(map(len, one.logprobs)) == widths[one.request_id]
        engine.schedule()


def test_ends_that_nobody_foresaw(llama: Path) -> None:
    """Whoever says an end token leaves, though its next step was begun."""
    long = replace(SEEDED, max_tokens=60, temperature=1.5)
    whole = run(load(llama), requests(PROMPTS, long))
    ends = tuple(answer[7] for answer in whole)
    stopping = replace(long, stop_token_ids=ends)
    expected = run(load(llama), requests(PROMPTS, stopping))
    assert len({len(answer) for answer in expected}) > 1
    engine, _ = ahead(llama)
    assert run(engine, requests(PROMPTS, stopping)) == expected


@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["plain", "penalised"])
def test_the_next_step_is_launched_before_the_last_tokens_are_read(
    llama: Path, sampling: Sampling
) -> None:
    engine, accelerator = ahead(llama)
    engine.generate(requests([PROMPTS[1]], sampling)[0])
    for _ in range(6):
        engine.schedule()
        engine.step()
    assert (
        accelerator.told
        == [
            "begin 0",
            *(word for step in range(1, 6) for word in (f"begin {step}", f"read {step - 1}")),
        ][: len(accelerator.told)]
    )
    assert accelerator.told[-1] == "read 4"


def test_no_step_is_run_in_vain(llama: Path) -> None:
    """But for the one behind the last token that nobody could foresee."""
    engine, accelerator = ahead(llama, max_num_seqs=7)
    for request in requests(PROMPTS):
        engine.generate(request)
    steps = 0
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        engine.step()
        steps += 1
    assert accelerator.begun <= steps
    assert_idle(engine)


@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_and_goes(llama: Path, seed: int) -> None:
    """Requests that come, are aborted, and are put back for want of blocks, at any time."""
    dice = random.Random(seed)
    samplings = [GREEDY, SEEDED, PENALISED, ALL_PENALTIES, BOUND, GRAMMAR]
    every = [
        Request(
            RequestId(str(number)),
            dice.choice(PROMPTS),
            replace(dice.choice(samplings), max_tokens=dice.randint(1, 25), seed=number),
        )
        for number in range(24)
    ]
    plain, alone = load(llama), dict[RequestId, list[int]]()
    for request in every:
        (alone[request.request_id],) = run(plain, [request])
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    engine, _ = ahead(
        llama, block_size=4, max_model_len=120, kv_cache_memory_bytes=160 * token_bytes
    )
    eager(engine)
    said, gone, coming = dict[RequestId, list[int]](), set[RequestId](), list(every)
    while coming or engine.load.waiting or engine.load.running:
        if coming and dice.random() < 0.5:
            engine.generate(coming.pop())
        if dice.random() < 0.08 and engine.scheduler.sequences.running:
            victim = dice.choice(list(engine.scheduler.sequences.running))
            engine.release(victim)
            gone.add(victim)
        engine.schedule()
        for one in engine.step().sampled:
            said.setdefault(one.request_id, []).extend(one.tokens)
        engine.scheduler.sequences.kv.check()
    assert_idle(engine)
    for name, answer in alone.items():
        if name in gone:
            assert answer[: len(said.get(name, []))] == said.get(name, [])
        else:
            assert said[name] == answer


def test_what_comes_over_joins_those_that_run(llama: Path) -> None:
    """Reserved blocks are written to by others, while what was begun runs: it has others."""
    whole = run(load(llama), requests(PROMPTS, SEEDED))
    source, (sink, accelerator) = load(llama), ahead(llama, max_num_seqs=7)
    everything = requests(PROMPTS, SEEDED)
    first = park(source, everything)
    answers = dict[RequestId, list[int]]()
    for request in everything:
        move(source, sink, request)
        for one in sink.resume(request.request_id, [first[request.request_id]]):
            answers[request.request_id] = list(one.tokens)
        for _ in range(2):
            sink.schedule()
            for one in sink.step().sampled:
                answers[one.request_id] += one.tokens
    sink.schedule()
    for name, tokens in drain(sink).items():
        answers[name] += tokens
    assert [answers[request.request_id] for request in everything] == whole
    assert accelerator.waits == 0
    assert_idle(sink)


def test_blocks_of_the_step_begun_are_waited_for(llama: Path) -> None:
    """Who ended meanwhile leaves a row behind, and his blocks are others' at once."""
    dice = random.Random(1)
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    engine, accelerator = ahead(
        llama, block_size=4, max_model_len=120, kv_cache_memory_bytes=140 * token_bytes
    )
    assert isinstance(engine.stepper, AheadStepper)
    held, waited, at_once = list[RequestId](), 0, 0
    for number in range(600):
        sampling = replace(SEEDED, max_tokens=dice.randint(2, 20), seed=number)
        one = Request(RequestId(str(number)), dice.choice(PROMPTS), sampling)
        if dice.random() < 0.3:
            engine.generate(one)
        elif dice.random() < 0.4:
            running = list(engine.scheduler.sequences.running)
            for name in dice.sample(running, min(2, len(running))):
                engine.release(name)
            before, launched = accelerator.waits, engine.stepper.launched
            reservation = engine.reserve(one)
            if reservation is not None and launched is not None:
                in_step = {block for row in launched.rows for block in row.blocks}
                written = {*reservation.blocks[reservation.filled // 4 :]}
                waited += accelerator.waits > before
                at_once += accelerator.waits == before
                assert accelerator.waits > before or not in_step & written
            held += [] if reservation is None else [one.request_id]
        elif held and dice.random() < 0.5:
            engine.release(held.pop(0))
        engine.schedule()
        engine.step()
    assert min(waited, at_once) > 3, (waited, at_once)


@pytest.mark.parametrize("sampling", [SEEDED, PENALISED, ALL_PENALTIES, LOGPROBS])
def test_the_interpreted_kernel_draws_alike(llama: Path, sampling: Sampling) -> None:
    few = replace(sampling, max_tokens=4)
    expected = run(load(llama), requests(PROMPTS[:2], few))
    kernels = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)
    engine, _ = ahead(llama, kernels, max_num_batched_tokens=8)
    assert run(engine, requests(PROMPTS[:2], few)) == expected

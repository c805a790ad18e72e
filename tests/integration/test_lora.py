"""Each request says what PEFT says of its own adapter, whoever is in the batch beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine.errors import UnknownAdapter
from engine.models.decoder import adapters_of
from engine.request import Request, Sampling, tokens_digest
from engine.torch_engine import TorchEngine
from tests.fakes.adapters import AdaptedReference, make_adapter, named
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import assert_idle, eager, hand_over, load, prompt, requests, run
from tests.fakes.ranks import ranked
from tests.fakes.reference import Reference

GREEDY = Sampling(max_tokens=16, temperature=0, ignore_eos=True)
PROMPTS = [prompt(length) for length in (1, 5, 17, 40, 64, 33)]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
STATES = ["in_proj", "out_proj"]
SHORT = ["w1", "w2", "w3"]
UNGATED = ["up_proj", "down_proj"]
FUSED = ["o_proj", "gate_up_proj", "down_proj"]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"target_modules": "all-linear"},
    "phi3": {"target_modules": ["qkv_proj", *FUSED]},
    "gemma2": {},
    "gemma3": {},
    "gemma4_text": {"target_modules": "all-linear"},
    "gemma4": {"target_modules": r".*language_model.*\.([qko]_proj|gate_proj|down_proj)"},
    "qwen2_5_vl": {},
    "qwen3_vl": {},
    "qwen3_5_text": {"target_modules": "all-linear"},
    "qwen3_next": {"target_modules": [*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"]},
    "bamba": {"target_modules": "all-linear"},
    "falcon_h1": {"target_modules": [*ATTENTION, "gate_proj", *UNGATED, "in_proj"]},
    "granitemoehybrid": {"target_modules": [*ATTENTION, *STATES, "input_linear"]},
    "nemotron_h": {"target_modules": [*ATTENTION, *UNGATED, "in_proj"]},  # PEFT wants no more
    "lfm2": {"target_modules": [*SHORT, *STATES, "q_proj", "v_proj"]},
    "lfm2_moe": {"target_modules": [*SHORT, *STATES]},
    "granite": {},
    "olmo2": {},
    "glm4": {"target_modules": [*ATTENTION, *FUSED]},  # whose rotation reorders heads
    "smollm3": {},
    "qwen2_moe": {"target_modules": [*ATTENTION, "shared_expert_gate"]},
    "mixtral": {"target_modules": ATTENTION},
    "gpt_oss": {"target_modules": ATTENTION},
    "glm4_moe": {"target_modules": ATTENTION},
    "minimax_m2": {"target_modules": ATTENTION},
    "deepseek_v3": {"target_modules": ["q_b_proj", "o_proj"]},
}
STATEFUL = ["qwen3_5_text", "qwen3_next", "granitemoehybrid", "nemotron_h"]
STATEFUL += ["falcon_h1", "lfm2", "lfm2_moe"]
RANKED = ["llama", "phi3", "qwen2_moe", "deepseek_v3", *STATEFUL]
SCALES: dict[str, dict[str, Any]] = {
    "alpha over the root of the rank": {"use_rslora": True, "r": 9},
    "ranks of some layers": {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 7}},
    "alphas of some layers": {"alpha_pattern": {"layers.0.self_attn.v_proj": 24, "up_proj": 2}},
    "a single layer": {"target_modules": ["k_proj"], "layers_to_transform": [1]},
}


def asked(names: Sequence[str | None], sampling: Sampling = GREEDY) -> list[Request]:
    """Every prompt, each with the next of the adapters."""
    return [
        replace(one, adapter=names[index % len(names)])
        for index, one in enumerate(requests(PROMPTS, sampling))
    ]


@pytest.fixture(scope="module")
def two(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Adapters of Llama, of different layers and ranks."""
    folder = tmp_path_factory.mktemp("adapters")
    first = make_adapter(llama, folder / "first", 1)
    return first, make_adapter(
        llama, folder / "second", 2, r=20, target_modules=["q_proj", "v_proj"]
    )


@pytest.fixture(scope="module")
def expected(llama: Path, two: tuple[Path, Path]) -> dict[str | None, list[list[int]]]:
    """All prompts' answers with either adapter and with none, by engines that have no other."""
    said: dict[str | None, list[list[int]]] = {None: run(load(llama), asked([None]))}
    for one in two:
        said[one.name] = run(load(llama, lora_modules=named(one)), asked([one.name]))
    return said


def mixed(
    expected: dict[str | None, list[list[int]]], names: Sequence[str | None]
) -> list[list[int]]:
    """What `asked(names)` is answered."""
    return [expected[names[index % len(names)]][index] for index in range(len(PROMPTS))]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_what_peft_says(family: str, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(base, tmp_path / "ours", **FAMILIES[family])
    engine = load(base, lora_modules=named(adapter), max_num_batched_tokens=32)
    references = {None: Reference(base), "ours": AdaptedReference(base, adapter)}
    every = asked([None, "ours"])
    different = False
    for request, answer in zip(every, run(engine, every), strict=True):
        judged = {name: one.greedy(request.prompt, answer) for name, one in references.items()}
        assert answer == judged[request.adapter]
        different |= judged[None] != judged["ours"]
    assert different


@pytest.mark.parametrize("settings", SCALES.values(), ids=SCALES.keys())
def test_every_way_to_scale(llama: Path, settings: dict[str, Any], tmp_path: Path) -> None:
    adapter = make_adapter(llama, tmp_path / "ours", **settings)
    engine, reference = (
        load(llama, lora_modules=named(adapter)),
        AdaptedReference(llama, adapter),
    )
    every = asked(["ours"])
    for request, answer in zip(every, run(engine, every), strict=True):
        assert answer == reference.greedy(request.prompt, answer)


def test_a_batch_of_several_adapters(
    llama: Path, two: tuple[Path, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = [None, "second", "first"]
    engine = load(llama, lora_modules=named(*two), max_num_batched_tokens=40)
    assert run(engine, asked(names)) == mixed(expected, names)
    assert expected["first"] != expected["second"] != expected[None] != expected["first"]


def test_an_adapter_reads_no_kv_of_another(
    llama: Path, two: tuple[Path, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    """The same prompts one after the other, with everything cached that was there before."""
    engine = load(llama, lora_modules=named(*two))
    for name in ("first", None, "second", "first", None):
        assert run(engine, asked([name])) == expected[name]
    engine.generate(asked(["second"])[4])
    (admitted,) = engine.schedule()
    assert admitted.cached_tokens == 48  # its own are found again
    engine.release(admitted.request_id)


def test_preempted_is_undisturbed(
    llama: Path, two: tuple[Path, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = ["first", None, "second"]
    token_bytes = load(llama, block_size=1).kv_regions[0].block_bytes
    engine = eager(
        load(
            llama,
            lora_modules=named(*two),
            kv_cache_memory_bytes=100 * token_bytes,
            max_model_len=90,
            block_size=4,
        )
    )
    assert run(engine, asked(names)) == mixed(expected, names)
    assert engine.load.preemptions > 0


def test_what_is_foretold_changes_nothing(
    llama: Path, two: tuple[Path, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = ["second", "first"]
    engine = load(
        llama, lora_modules=named(*two), speculative_config='{"num_speculative_tokens": 4}'
    )
    assert run(engine, asked(names)) == mixed(expected, names)


def test_split_is_unsplit(
    llama: Path, two: tuple[Path, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = ["first", "second", None]
    source, sink = (load(llama, lora_modules=named(*two)) for _ in range(2))
    assert hand_over(source, sink, asked(names)) == mixed(expected, names)
    assert_idle(source)
    assert_idle(sink)


@pytest.mark.parametrize("family", RANKED)
def test_two_ranks_say_what_one_process_says(family: str, tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", family)
    adapter = make_adapter(base, tmp_path / "ours", **FAMILIES[family])
    alone = run(load(base, lora_modules=named(adapter)), asked(["ours", None]))
    with ranked(base, 2, lora_modules=named(adapter), max_num_batched_tokens=40) as engine:
        assert run(engine, asked(["ours", None])) == alone


def test_steps_without_adapters_are_replayed_between_others(
    llama: Path, two: tuple[Path, Path]
) -> None:
    """In bfloat16 some CPUs' decode steps are recorded, and a recording has no adapter."""
    settings: dict[str, object] = {"dtype": "bfloat16", "enable_prefix_caching": False}
    engine, plain = load(llama, lora_modules=named(*two), **settings), load(llama, **settings)
    before = run(engine, asked(["first"]))
    for _ in range(2):
        assert run(engine, asked([None])) == run(plain, asked([None]))
        assert run(engine, asked(["first"])) == before


@pytest.mark.parametrize(
    ("quantization", "kernels"),
    [("fp8", "torch"), ("int4", "torch"), ("int4", "auto"), ("fp8", "auto")],
)
def test_weights_that_are_quantized(
    llama: Path, two: tuple[Path, Path], quantization: str, kernels: str
) -> None:
    """The adapter is added to what the quantized layer says, and to no other request."""
    chosen: dict[str, object] = {"quantization": quantization, "cpu_kernels": kernels}
    engine = load(llama, lora_modules=named(*two), **chosen)
    plain = run(load(llama, **chosen), asked([None]))
    assert run(engine, asked([None])) == plain
    said = run(engine, asked(["first", None]))
    assert said[1::2] == plain[1::2]
    assert all(one != other for one, other in zip(said[2::2], plain[2::2], strict=True))


def test_an_adapter_that_is_not_there_is_refused(llama: Path, two: tuple[Path, Path]) -> None:
    engine = load(llama, lora_modules=named(two[0]))
    for one in (engine, load(llama)):
        with pytest.raises(UnknownAdapter, match="second") as refused:
            one.generate(asked(["second"])[0])
        assert refused.value.param == "model"
        assert_idle(one)
    assert adapters_of(engine.decoder) is not None
    assert adapters_of(load(llama).decoder) is None


def test_a_ticket_of_another_adapter_is_no_ticket() -> None:
    (plain,) = requests([PROMPTS[2]])
    every = [plain, replace(plain, adapter="a"), replace(plain, adapter="b")]
    assert len({tokens_digest(one) for one in every}) == 3


def test_no_salt_is_taken_for_an_adapter() -> None:
    (plain,) = requests([PROMPTS[2]])
    spaces = [
        *("", "a", "a/b", "/a", "\xff", "\xffa\xff"),
        *(("a", ""), ("a", "b"), ("a\xff", "b"), ("", "a"), ("a", "\xffb")),
    ]
    found = {
        replace(plain, cache_salt=one).cache_namespace
        if isinstance(one, str)
        else replace(plain, adapter=one[0], cache_salt=one[1]).cache_namespace
        for one in spaces
    }
    assert len(found) == len(spaces)


def keys(engine: TorchEngine, adapter: str | None) -> Sequence[bytes]:
    return engine.keys(replace(requests([PROMPTS[4]])[0], adapter=adapter))


def test_fingerprints_cover_what_adapters_are(
    llama: Path, two: tuple[Path, Path], tmp_path: Path
) -> None:
    first, second = two
    again = make_adapter(llama, tmp_path / "first", 1)
    other = make_adapter(llama, tmp_path / "other" / "first", 3)
    engines = {
        "none": load(llama),
        "first": load(llama, lora_modules=named(first)),
        "again": load(llama, lora_modules=named(again)),
        "other": load(llama, lora_modules=named(other)),
        "both": load(llama, lora_modules=named(first, second)),
        "turned": load(llama, lora_modules=named(second, first)),
    }
    prints = {name: engine.info.fingerprint for name, engine in engines.items()}
    assert prints["first"] == prints["again"]
    assert prints["both"] == prints["turned"]
    assert len(set(prints.values())) == 4
    assert engines["turned"].info.adapters == ("second", "first")
    assert keys(engines["both"], "second") == keys(engines["turned"], "second")
    assert keys(engines["both"], "second") != keys(engines["both"], "first")

"""An adapter that would not be what it says is refused when the engine starts, by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoints.checkpoint import open_checkpoint
from engine.errors import EngineError, UnusableAdapter
from engine.loading import open_engine
from engine.lora.adapter import read_adapter
from engine.models.config import parse_config
from engine.models.shards import shard_adapter
from engine.settings import EngineConfig, read_lora_modules
from engine.sharding.shard import Shard
from tests.fakes.adapters import AdaptedReference, make_adapter, named
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, requests, run

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
LAYER = "base_model.model.model.layers.0.self_attn.q_proj"
Spoil = Callable[[Path], object]


def edited(**settings: object) -> Spoil:
    """Its config says something else."""

    def spoil(folder: Path) -> None:
        file = folder / CONFIG
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))

    return spoil


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Spoil:
    """It has other tensors."""

    def spoil(folder: Path) -> None:
        every = load_file(folder / WEIGHTS)
        change(every)
        save_file(every, folder / WEIGHTS)

    return spoil


def more(name: str, *shape: int) -> Spoil:
    return tensors(lambda every: every.update({name: torch.ones(shape)}))


def moved(layer: str) -> Spoil:
    """The factors of a layer belong to another."""

    def change(every: dict[str, Tensor]) -> None:
        for name in [name for name in every if name.startswith(LAYER)]:
            every[name.replace(LAYER, f"base_model.model.{layer}")] = every.pop(name)

    return tensors(change)


SPOILS: dict[str, tuple[Spoil, str]] = {
    "no config": (lambda folder: (folder / CONFIG).unlink(), f"{CONFIG} is missing"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
    "no JSON": (lambda folder: (folder / CONFIG).write_text("{"), CONFIG),
    "a list": (lambda folder: (folder / CONFIG).write_text("[]"), CONFIG),
    "no rank": (edited(r=None), r"\$.r"),
    "cut off": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-9]),
        WEIGHTS,
    ),
    "another method": (edited(peft_type="LOHA"), "LOHA"),
    "DoRA": (edited(use_dora=True), "use_dora True"),
    "a variant to come": (edited(use_more=True), "use_more True"),
    "a variant by its name": (edited(variant="magic"), "variant 'magic'"),
    "a base that is moved": (edited(init_lora_weights="lora_ga"), "lora_ga"),
    "a pattern that is none": (edited(alpha_pattern={"[": 1}), "unterminated"),
    "no numbers": (
        tensors(lambda every: every[f"{LAYER}.lora_A.weight"].fill_(torch.nan)),
        "not finite",
    ),
    "biases": (edited(bias="lora_only"), "bias 'lora_only'"),
    "whole layers": (edited(modules_to_save=["lm_head"]), "modules_to_save"),
    "some tokens": (edited(trainable_token_indices=[3]), "trainable_token_indices"),
    "transposed": (edited(fan_in_fan_out=True), "fan_in_fan_out"),
    "another base": (edited(init_lora_weights="pissa_niter_4"), "pissa_niter_4"),
    "half a pair": (tensors(lambda every: every.pop(f"{LAYER}.lora_B.weight")), "lora_B"),
    "a pair that does not fit": (more(f"{LAYER}.lora_B.weight", 32, 5), "ranks differ"),
    "a vector": (more(f"{LAYER}.lora_A.weight", 32), "no matrix"),
    "other inputs": (more(f"{LAYER}.lora_A.weight", 4, 30), "30 inputs"),
    "other outputs": (more(f"{LAYER}.lora_B.weight", 34, 4), "34 outputs"),
    "an embedding": (
        more("base_model.model.model.embed_tokens.lora_embedding_A", 4, 9),
        "embed",
    ),
    "a layer too many": (moved("model.layers.2.self_attn.q_proj"), r"layers\.2\.self_attn"),
    "a head": (moved("lm_head"), "such as lm_head"),
    "nothing": (tensors(lambda every: every.clear()), "no tensors"),
}


@pytest.fixture(scope="module")
def adapter(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(llama, tmp_path_factory.mktemp("adapter") / "sound")


@pytest.mark.parametrize(("spoil", "told"), SPOILS.values(), ids=SPOILS.keys())
def test_a_spoiled_one_is_refused(
    llama: Path, adapter: Path, spoil: Spoil, told: str, tmp_path: Path
) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).write_bytes((adapter / name).read_bytes())
    spoil(folder)
    with pytest.raises(UnusableAdapter, match=rf"adapter ours.*{told}"):
        load(llama, lora_modules=named(folder))


@pytest.mark.parametrize(
    "settings",
    [
        {"init_lora_weights": "gaussian"},
        {"init_lora_weights": "eva", "megatron_core": "any", "a_number_to_come": 3},
        {"loftq_config": {}, "eva_config": {"rho": 2.0}, "lora_dropout": 0.1},
    ],
    ids=str,
)
def test_settings_of_training_alone_are_of_no_account(
    llama: Path, adapter: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    for name in (CONFIG, WEIGHTS):
        (folder / name).write_bytes((adapter / name).read_bytes())
    edited(**settings)(folder)
    assert load(llama, lora_modules=named(folder)).info.adapters == ("ours",)


def test_routed_experts_have_no_adapters(tmp_path: Path) -> None:
    """They get some of a step's rows; silently left out they would be another model."""
    base = make_checkpoint(tmp_path / "base", "qwen2_moe")
    ours = make_adapter(base, tmp_path / "ours", target_modules=["q_proj"])
    name = "base_model.model.model.layers.0.mlp.experts.1.gate_proj.lora_{}.weight"
    more(name.format("A"), 4, 32)(ours)
    more(name.format("B"), 24, 4)(ours)
    with pytest.raises(UnusableAdapter, match=r"experts\.1\.gate_proj"):
        load(base, lora_modules=named(ours))


def test_an_adapter_of_what_is_left_out_is_refused(tmp_path: Path) -> None:
    """Of a model for text and images only the text is served."""
    base = make_checkpoint(tmp_path / "base", "gemma3")
    ours = make_adapter(base, tmp_path / "ours", target_modules=r".*vision_tower.*\.q_proj")
    with pytest.raises(UnusableAdapter, match="no layer is of the text model"):
        load(base, lora_modules=named(ours))


def test_ranks_lose_no_row_of_a_factor(llama: Path, adapter: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    for file in (CONFIG, WEIGHTS):
        (folder / file).write_bytes((adapter / file).read_bytes())
    more(f"{LAYER.replace('q_proj', 'k_proj')}.lora_B.weight", 17, 4)(folder)
    config = parse_config(open_checkpoint(str(llama)).config)
    for rank in range(2):
        with pytest.raises(UnusableAdapter, match=r"ours: .*k_proj has 17 outputs"):
            shard_adapter(read_adapter("ours", folder), config, Shard(rank, 2))


def test_what_runs_other_code_has_no_adapters(
    llama: Path, adapter: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnusableAdapter, match="transformers"):
        load(llama, model_impl="transformers", lora_modules=named(adapter))
    encoder = make_checkpoint(tmp_path, "bert")
    config = EngineConfig(model=str(encoder), lora_modules=named(adapter), threads=1)
    with pytest.raises(UnusableAdapter, match="encoders"):
        open_engine(config, transfer_bytes=0)


def test_dummy_weights_have_adapters(llama: Path, adapter: Path) -> None:
    """They are for measurements, of adapters too."""
    chosen: dict[str, Any] = {"load_format": "dummy", "seed": 5}
    engine = load(llama, lora_modules=named(adapter), **chosen)
    (request,) = requests([prompt(9)])
    assert run(engine, [request]) == run(load(llama, **chosen), [request])


def test_factors_in_half_precision_are_widened(
    llama: Path, adapter: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / CONFIG).write_bytes((adapter / CONFIG).read_bytes())
    every = {name: one.bfloat16() for name, one in load_file(adapter / WEIGHTS).items()}
    save_file(every, folder / WEIGHTS)
    (request,) = requests([prompt(20)])
    (answer,) = run(load(llama, lora_modules=named(folder)), [replace(request, adapter="ours")])
    assert answer == AdaptedReference(llama, folder).greedy(request.prompt, answer)


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["sql"], "name=path"),
        (["=x"], "the name is empty"),
        (["sql= "], "the path is empty"),
        (["a=b", "a=c"], "two adapters have the name a"),
        (['{"name": "a"}'], "path"),
        (['{"name": "a", "path": "b", "more": 1}'], "more"),
    ],
)
def test_a_setting_that_says_no_adapter(texts: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=rf"--lora-modules.*{told}"):
        read_lora_modules(texts)


def test_a_setting_in_either_form() -> None:
    texts = [" a = b=c", '{"name": "d", "path": "e", "is_3d_lora_weight": true}']
    assert [(one.name, one.path) for one in read_lora_modules(texts)] == [
        ("a", "b=c"),
        ("d", "e"),
    ]


def test_a_folder_that_is_not_there(llama: Path) -> None:
    with pytest.raises(EngineError, match=r"adapter a: /nowhere is no folder"):
        load(llama, lora_modules=("a=/nowhere",))

"""GPTQ's act-order: groups of inputs from anywhere, as the checkpoint means them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, tensor

from engine.checkpoints.checkpoint import WEIGHTS
from engine.checkpoints.packed import read_packed, unpacked
from engine.checkpoints.packing import Packing
from engine.checkpoints.storage import StoredLinear
from engine.errors import UnusableCheckpoint
from engine.kernels.gpu.products import TritonProducts
from engine.kernels.products import TorchProducts
from engine.kernels.weights import Int4Weight
from engine.models.decoder import Decoder
from engine.models.experts import SparseMlp, StackedExperts
from engine.models.grouped_attention import GroupedAttention
from engine.models.mlp import GatedMlp
from engine.sharding.shard import Shard
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt, prompt_logits, requests, run
from tests.fakes.packed import GROUP, pack_in_act_order
from tests.fakes.ranks import ranked
from tests.integration.test_packed import FAMILIES, narrow
from tests.integration.test_packed_ranks import FAMILIES as IN_PARTS
from tests.integration.test_packed_ranks import PROMPTS, part_of, parts_say_the_same
from tests.integration.test_storage import whole_engine

EVERYBODY = (TritonProducts(), TorchProducts())
DOWN, KEYS = "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.k_proj"


def made(
    folder: Path, family: str, families: Mapping[str, Any] = FAMILIES
) -> tuple[Path, Path]:
    """Packed, and with the same numbers in float32."""
    plain, packed = folder / "plain", folder / "packed"
    make_checkpoint(plain, family, **families[family])
    pack_in_act_order(plain, packed)
    return packed, plain


def decoder(folder: Path) -> Decoder:
    model = narrow(folder).decoder
    assert isinstance(model, Decoder)
    return model


def weight_of(product: object) -> Int4Weight:
    assert isinstance(product, StoredLinear)
    assert isinstance(product.weight, Int4Weight)
    return product.weight


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_says_what_its_numbers_say(family: str, tmp_path: Path) -> None:
    packed, plain = made(tmp_path, family)
    ours, theirs = (prompt_logits(one, prompt(30), 30) for one in _engines(packed, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def _engines(packed: Path, plain: Path) -> tuple[TorchEngine, TorchEngine]:
    return narrow(packed), whole_engine(plain)


@pytest.mark.parametrize("rows", [3, 70])
@pytest.mark.parametrize("products", EVERYBODY, ids=["triton", "torch"])
def test_products_are_those_of_float64(
    products: TritonProducts | TorchProducts, rows: int, tmp_path: Path
) -> None:
    """Few rows are looked up by the kernel, many before it."""
    packed, plain = made(tmp_path, "llama")
    attention, exact = decoder(packed).layers[0].attention, load_file(plain / WEIGHTS)
    assert isinstance(attention, GroupedAttention)
    weight = exact["model.layers.0.self_attn.o_proj.weight"].double()
    given = torch.randn(rows, weight.shape[1])
    answer = products.multiply(given, weight_of(attention.output))
    torch.testing.assert_close(answer.double(), given.double() @ weight.T, rtol=1e-5, atol=1e-5)


def test_nothing_is_looked_up_between_gates_and_what_leads_back(tmp_path: Path) -> None:
    """Gates and ups come out in its order; queries and gates share one of their inputs."""
    layer = decoder(made(tmp_path / "dense", "llama")[0]).layers[0]
    assert isinstance(layer.mlp, GatedMlp)
    assert isinstance(layer.attention, GroupedAttention)
    assert weight_of(layer.mlp.down).order is None
    for product in (layer.mlp.gate_up, layer.attention.query_key_value, layer.attention.output):
        assert weight_of(product).order is not None
    sparse = decoder(made(tmp_path / "sparse", "qwen3_moe")[0]).layers[0].mlp
    assert isinstance(sparse, SparseMlp)
    assert isinstance(sparse.experts, StackedExperts)
    inward, outward = sparse.experts.gate_up.weight, sparse.experts.down.weight
    assert isinstance(inward, Int4Weight)
    assert isinstance(outward, Int4Weight)
    assert outward.order is None
    assert inward.order is not None
    assert not torch.equal(inward.order[0], inward.order[1])


def test_biases_go_along_with_their_outputs(tmp_path: Path) -> None:
    """An MLP with biases, in and out, in an order that is not its checkpoint's."""
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "llama", **{**FAMILIES["llama"], "mlp_bias": True})
    _edit(plain, _draw_biases)
    pack_in_act_order(plain, packed)
    ours, theirs = (prompt_logits(one, prompt(30), 30) for one in _engines(packed, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def _draw_biases(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.endswith("_proj.bias")]:
        tensors[name] = torch.randn(tensors[name].shape)


def _edit(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def _one_too_many(tensors: dict[str, Tensor]) -> None:
    places = tensors[f"{DOWN}.g_idx"]
    places[(places == 0).nonzero()[0]] = 1


def _beyond(tensors: dict[str, Tensor]) -> None:
    tensors[f"{DOWN}.g_idx"] += 1


def _another_order(tensors: dict[str, Tensor]) -> None:
    tensors[f"{KEYS}.g_idx"] = tensors[f"{KEYS}.g_idx"].flip(0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_one_too_many, f"{DOWN}.g_idx: not every group has {GROUP} inputs"),
        (_beyond, f"{DOWN}.g_idx: not every group has {GROUP} inputs"),
        (_another_order, f"{KEYS}.g_idx: another order than q_proj's of the same inputs"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    change: Callable[[dict[str, Tensor]], None], why: str, tmp_path: Path
) -> None:
    packed, _ = made(tmp_path, "llama")
    _edit(packed, change)
    with pytest.raises(UnusableCheckpoint, match=why):
        narrow(packed)


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_a_rank_reads_its_inputs_of_every_group(family: str, tmp_path: Path) -> None:
    parts_say_the_same(*made(tmp_path, family, IN_PARTS))


@pytest.mark.parametrize(("ranks", "family"), [*((2, one) for one in IN_PARTS), (4, "llama")])
def test_ranks_say_what_one_process_says(ranks: int, family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, IN_PARTS)
    alone = narrow(packed)
    said = run(alone, requests(PROMPTS))
    with ranked(packed, ranks, cpu_kernels="torch", max_num_batched_tokens=24) as engine:
        assert run(engine, requests(PROMPTS)) == said
        assert engine.info.fingerprint == alone.info.fingerprint


@pytest.mark.parametrize("some", [[130, 1, 0, 125], [64, 64, 64, 64], [2, 33, 97, 124]])
def test_what_a_rank_has_of_a_group_goes_in_pieces(some: list[int]) -> None:
    """So many inputs of each group, from anywhere, with its scale and zero."""
    outputs, inputs = 16, sum(some)
    order, groups = torch.randperm(inputs), torch.arange(4).repeat_interleave(tensor(some))
    stored = {
        "x.qweight": torch.randint(-(1 << 31), 1 << 31, (inputs // 8, outputs)).int(),
        "x.qzeros": torch.randint(-(1 << 31), 1 << 31, (4, outputs // 8)).int(),
        "x.scales": torch.rand(4, outputs),
        "x.g_idx": groups[order].int(),
    }
    packing = Packing(layout="gptq", group=128, zeros=True, ordered=True)
    sizes = outputs, inputs
    made = read_packed(packing, lambda name, *_: stored[name], "x", "qweight", sizes, 2)
    numbers, zeros = unpacked(stored["x.qweight"].T), unpacked(stored["x.qzeros"] + 0x11111111)
    scales, zeros = (one[groups[order]].T for one in (stored["x.scales"], zeros.float()))
    assert torch.equal(made.whole(0), (numbers.float() - zeros) * scales)
    assert isinstance(made, Int4Weight)
    assert made.places == sum(-(-count // 32) * 32 for count in some)


def test_a_rank_refuses_groups_that_are_not_there(tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", IN_PARTS)
    _edit(packed, _beyond)
    for rank in range(2):
        with pytest.raises(UnusableCheckpoint, match=f"{DOWN}.g_idx: a group beyond the last"):
            part_of(packed, Shard(rank, 2))

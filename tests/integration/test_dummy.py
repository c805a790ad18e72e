"""`--load-format dummy`: a config alone makes an engine, and on every node the same one."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.dummy import DummyTensorFile, dummy_store
from engine.errors import UnusableCheckpoint
from engine.models.config import parse_config
from engine.models.shards import shard_tensors
from engine.sharding.shard import Shard
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import hand_over, load, prompt, prompt_logits, requests, run
from tests.fakes.families import Case
from tests.fakes.mixtures import EVERY_CASE
from tests.fakes.transformers_shapes import ADAPTED

PROMPTS = [prompt(length) for length in (1, 15, 16, 40)]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


def config_of(real: Path, folder: Path) -> Path:
    """The same model with nothing but its config."""
    folder.mkdir(exist_ok=True)
    shutil.copy(real / "config.json", folder)
    return folder


def dummy(folder: Path, **settings: object) -> TorchEngine:
    return load(folder, load_format="dummy", **settings)


def test_a_config_alone_makes_an_engine_and_split_is_whole(real: Path, tmp_path: Path) -> None:
    folder = config_of(real, tmp_path)
    whole = run(dummy(folder), requests(PROMPTS))
    assert hand_over(dummy(folder), dummy(folder), requests(PROMPTS)) == whole
    assert len({tuple(answer) for answer in whole}) == len(PROMPTS)


def test_another_seed_is_another_model_and_neither_is_the_real_one(
    real: Path, tmp_path: Path
) -> None:
    folder = config_of(real, tmp_path / "alone")
    beside = shutil.copytree(real, tmp_path / "beside")
    (beside / "model.safetensors").write_bytes(b"no weights at all")
    one, same, other = dummy(beside), dummy(real), dummy(real, seed=1)
    assert one.info.fingerprint == same.info.fingerprint
    names = {one.info.fingerprint, other.info.fingerprint, load(real).info.fingerprint}
    assert len(names) == 3
    assert run(one, requests(PROMPTS)) == run(same, requests(PROMPTS))
    assert run(other, requests(PROMPTS)) != run(same, requests(PROMPTS))
    assert dummy(folder).info.fingerprint not in names  # without its tokenizer


@pytest.mark.parametrize("case", EVERY_CASE, ids=lambda case: f"{case.family}: {case.name}")
def test_numbers_stay_sensible_in_every_family(case: Case, tmp_path: Path) -> None:
    real = make_checkpoint(tmp_path / "real", case.family, **case.overrides)
    edit_config(real, case.edits)
    engine = dummy(
        config_of(real, tmp_path / "config"),
        dtype="bfloat16",
        cpu_kernels="torch",
        block_size=case.block_size,
        max_model_len=case.max_model_len,
    )
    logits = prompt_logits(engine, prompt(60), 32)
    assert logits.isfinite().all()
    assert 0.05 < logits.std() < 50


def test_models_of_transformers_are_made_up_as_well(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "stablelm", **ADAPTED["stablelm"])
    (folder / "model.safetensors").unlink()
    answers = [run(dummy(folder), requests(PROMPTS)) for _ in range(2)]
    assert answers[0] == answers[1]


def test_a_part_of_a_tensor_is_the_part_of_the_whole() -> None:
    made = DummyTensorFile((3, 70, 1000), torch.float32, CPU, 5)
    whole = made.get_tensor("x")
    part = made.get_slice("x")[slice(1, 3), slice(None), slice(7, 900)]
    assert torch.equal(part, whole[1:3, :, 7:900])
    assert torch.equal(made.get_slice("x")[slice(2, 3),], whole[2:3])
    assert made.get_slice("x").get_shape() == [3, 70, 1000]


def test_ranks_make_their_parts_of_the_same_weights(real: Path) -> None:
    config = parse_config(open_checkpoint(str(real)).config)
    at = "model.layers.0.self_attn"
    shapes = {f"{at}.q_proj.weight": (32, 32), f"{at}.o_proj.weight": (32, 32)}
    store = dummy_store(shapes, torch.float32, CPU, 0)
    whole = {name: file.get_tensor(name) for name, file in store.tensors.items()}
    ranks = [shard_tensors(store.tensors, config, Shard(rank, 2)) for rank in range(2)]
    for dim, name in enumerate(shapes):
        parts = [rank[name].get_tensor(name) for rank in ranks]
        assert torch.equal(torch.cat(parts, dim), whole[name])


def deviation(name: str, *shape: int) -> Tensor:
    return DummyTensorFile(shape, torch.float32, CPU, 0).get_tensor(name)


def test_weights_have_the_spread_that_keeps_activations_their_size() -> None:
    product = deviation("model.layers.0.mlp.up_proj.weight", 300, 400)
    assert product.std() == pytest.approx(400**-0.5, rel=0.02)
    assert abs(product.mean()) < 1e-3
    norm = deviation("model.layers.0.input_layernorm.weight", 4000)
    assert norm.mean() == pytest.approx(1, abs=0.01)
    assert deviation("q_proj.bias", 4000).std() == pytest.approx(0.02, rel=0.1)
    assert not torch.equal(deviation("a", 9, 9), deviation("b", 9, 9))


def test_numbers_of_a_long_tensor_do_not_repeat() -> None:
    long = DummyTensorFile((1 << 20,), torch.float32, CPU, 0).get_tensor("a")
    assert len(long.unique()) > 0.9 * len(long)
    assert abs(torch.corrcoef(torch.stack((long[:-1], long[1:])))[0, 1]) < 5e-3


def test_what_is_not_made_up_is_refused(real: Path, tmp_path: Path) -> None:
    classes = shutil.copytree(real, tmp_path / "classes")
    edit_config(
        classes,
        {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "1": "b"}},
    )
    with pytest.raises(UnusableCheckpoint, match=r"--load-format dummy: score\.weight"):
        dummy(classes)

"""Models without a family of ours run through transformers' code, or are refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import UnusableCheckpoint
from engine.models.transformers_model import TransformersModel
from engine.request import Sampling
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.reference import Reference
from tests.fakes.transformers_shapes import ADAPTED, STATEFUL

CHUNK = 32
LENGTHS = (1, 2, 16, 17, 75)
GREEDY = Sampling(max_tokens=64, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("family", ADAPTED)
def test_an_adapted_model_says_what_it_says_alone(family: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family, **ADAPTED[family])
    engine, reference = load(tmp_path, max_num_batched_tokens=CHUNK), Reference(tmp_path)
    assert isinstance(engine.decoder, TransformersModel)
    prompts = [prompt(length) for length in LENGTHS]
    for tokens, answer in zip(prompts, run(engine, requests(prompts, GREEDY)), strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, prompts[-1], CHUNK)
    torch.testing.assert_close(logits, reference.logits(prompts[-1]), atol=1e-4, rtol=1e-4)


def test_a_name_may_be_written_in_other_letters(tmp_path: Path) -> None:
    """Phi-3.5-MoE's is, in the config that was published."""
    make_checkpoint(tmp_path, "phimoe", **ADAPTED["phimoe"])
    edit_config(tmp_path, {"architectures": ["PhiMoEForCausalLM"]})
    assert isinstance(load(tmp_path).decoder, TransformersModel)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision(dtype: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "gpt_neox", dtype=dtype)
    engine, reference = load(tmp_path, dtype="auto"), Reference(tmp_path)
    ours, theirs = prompt_logits(engine, prompt(75), CHUNK), reference.logits(prompt(75))
    assert (ours - theirs).norm() < 0.04 * theirs.norm()


def test_a_family_of_ours_can_be_run_by_either(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen3", head_dim=16)
    asked = requests([prompt(length) for length in LENGTHS], GREEDY)
    adapted = load(tmp_path, model_impl="transformers")
    assert isinstance(adapted.decoder, TransformersModel)
    assert run(adapted, asked) == run(load(tmp_path), asked)


def test_kv_of_transformers_code_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Both say the same, and keep a key's dimensions in another order."""
    make_checkpoint(tmp_path, "helium")
    ours, theirs = load(tmp_path), load(tmp_path, model_impl="transformers")
    asked = requests([prompt(20)], GREEDY)
    assert run(theirs, asked) == run(ours, asked)
    assert theirs.memory.shape == ours.memory.shape
    assert theirs.info.fingerprint != ours.info.fingerprint


def test_a_part_that_ours_does_not_have_is_theirs_to_run(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, hidden_act="relu")
    engine, reference = load(tmp_path), Reference(tmp_path)
    assert isinstance(engine.decoder, TransformersModel)
    torch.testing.assert_close(
        prompt_logits(engine, prompt(40), CHUNK), reference.logits(prompt(40))
    )
    with pytest.raises(UnusableCheckpoint, match="hidden_act relu"):
        load(tmp_path, model_impl="pdserve")


@pytest.mark.parametrize("family", STATEFUL)
def test_a_model_with_more_than_keys_and_values_is_refused(family: str, tmp_path: Path) -> None:
    settings, why = STATEFUL[family]
    make_checkpoint(tmp_path, family, **settings)
    with pytest.raises(UnusableCheckpoint, match=f"{why}.*these run: Llama.*DeepseekV3"):
        load(tmp_path)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "gpt_neox")
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    name = "gpt_neox.layers.1.attention.dense.weight"
    save_file({key: value for key, value in whole.items() if key != name}, file)
    with pytest.raises(UnusableCheckpoint, match=f"1 tensors missing, such as {name}"):
        load(tmp_path)
    save_file({**whole, "another.weight": torch.ones(3)}, file)
    with pytest.raises(UnusableCheckpoint, match="1 tensors unexpected, such as another"):
        load(tmp_path)
    save_file({**whole, name: torch.ones(3, 3)}, file)
    with pytest.raises(UnusableCheckpoint, match=r"1 tensors mismatched, such as .*dense"):
        load(tmp_path)


def test_a_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "gpt_neox")
    edit_config(tmp_path, {"hidden_act": 5})
    with pytest.raises(UnusableCheckpoint, match=r"config.json: .*hidden_act"):
        load(tmp_path)


def test_constants_of_old_checkpoints_are_not_needed(tmp_path: Path) -> None:
    """GPT-2's masks, and names without the prefix: as the hub has it."""
    make_checkpoint(tmp_path, "gpt2")
    before = run(load(tmp_path), requests([prompt(20)]))
    file = tmp_path / "model.safetensors"
    whole = {name.removeprefix("transformer."): one for name, one in load_file(file).items()}
    whole["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    whole["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(whole, file, {"format": "pt"})
    assert run(load(tmp_path), requests([prompt(20)])) == before


def test_a_context_that_would_turn_cached_keys_is_not_reached(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1000.0}
    make_checkpoint(tmp_path, "starcoder2")
    config = json.loads((tmp_path / "config.json").read_text())
    trained = {"original_max_position_embeddings": 128}
    edit_config(tmp_path, {"rope_parameters": {**config["rope_parameters"], **rope, **trained}})
    assert load(tmp_path).info.max_model_len == 128
    with pytest.raises(UnusableCheckpoint, match="more than the model's 128 positions"):
        load(tmp_path, max_model_len=129)

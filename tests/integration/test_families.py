"""Every family we serve says what transformers says, whatever its config asks for."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.linear import PlainLinear
from engine.models.decoder import Decoder
from engine.models.families import FAMILIES
from engine.request import Sampling
from tests.fakes.checkpoints import FAMILY_SHAPE, edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits, requests, run
from tests.fakes.families import Case
from tests.fakes.mixtures import EVERY_CASE
from tests.fakes.reference import Reference

CHUNK = 32
GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


def named(case: Case) -> str:
    return f"{case.family}: {case.name}"


def test_every_family_that_is_served_is_tested() -> None:
    assert set(FAMILIES) == set(FAMILY_SHAPE) == {case.family for case in EVERY_CASE}


@pytest.mark.parametrize("case", EVERY_CASE, ids=named)
def test_a_batch_says_what_transformers_says(case: Case, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, case.family, **case.overrides)
    edit_config(tmp_path, case.edits)
    engine = load(
        tmp_path,
        max_num_batched_tokens=CHUNK,
        block_size=case.block_size,
        max_model_len=case.max_model_len,
    )
    assert isinstance(engine.decoder, Decoder), "not by transformers' code"
    reference = Reference(tmp_path)
    prompts = [prompt(length) for length in case.lengths]
    answers = run(engine, requests(prompts, GREEDY))
    for tokens, answer in zip(prompts, answers, strict=True):
        assert answer == reference.greedy(tokens, answer)
    logits = prompt_logits(engine, prompts[-1], CHUNK)
    theirs = reference.logits(prompts[-1])
    torch.testing.assert_close(logits, theirs, atol=case.error, rtol=1e-4)


@pytest.mark.parametrize("family", ["llama", "gemma2", "mistral3"])
def test_a_head_that_is_there_counts_though_the_config_ties_it(
    family: str, tmp_path: Path
) -> None:
    """As Mistral Small 3.1 was published, and models that were trained further."""
    make_checkpoint(tmp_path, family, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    at = "language_model." if family == "mistral3" else ""
    embedding = tensors[f"{at}model.embed_tokens.weight"]
    generator = torch.Generator().manual_seed(1)
    tensors[f"{at}lm_head.weight"] = torch.randn(embedding.shape, generator=generator)
    save_file(tensors, file, {"format": "pt"})
    ours = prompt_logits(load(tmp_path), prompt(40), CHUNK)
    theirs = Reference(tmp_path).logits(prompt(40))
    torch.testing.assert_close(ours, theirs, atol=3e-4, rtol=1e-4)


def test_a_head_that_is_the_embedding_once_more_is_not_kept_twice(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, {"format": "pt"})
    decoder = load(tmp_path, cpu_kernels="torch").decoder
    assert isinstance(decoder, Decoder)
    head = decoder.head
    assert isinstance(head, PlainLinear)
    assert head.weight.data_ptr() == decoder.embedding.data_ptr()


def test_gemma_rounds_its_scale_and_not_its_norms(tmp_path: Path) -> None:
    """As transformers does, in bfloat16: too small to be seen in logits of random weights."""
    make_checkpoint(tmp_path, "gemma", dtype="bfloat16", hidden_size=40)
    decoder = load(tmp_path, dtype="auto").decoder
    assert isinstance(decoder, Decoder)
    assert decoder.embedding_scale == 6.3125  # sqrt(40) is 6.3246
    (weight,) = [
        tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if name == "model.norm.weight"
    ]
    torch.testing.assert_close(decoder.norm.weight, 1 + weight.float(), rtol=0, atol=0)


def test_engines_that_chose_other_longrope_factors_do_not_share_kv(tmp_path: Path) -> None:
    (case,) = [case for case in EVERY_CASE if case.name == "longrope, long"]
    make_checkpoint(tmp_path, case.family, **case.overrides)
    short, far, farther = (
        load(tmp_path, max_model_len=length).info.fingerprint for length in (64, 65, 512)
    )
    assert short != far == farther

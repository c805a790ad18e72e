"""What cannot be loaded is refused by name, and what is loaded has a name of its own."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoints.checkpoint import Checkpoint, fingerprint_of, open_checkpoint
from engine.errors import UnusableCheckpoint
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import load, prompt, requests, run

NORM = "model.layers.1.input_layernorm.weight"
NOWHERE = {
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "HF_HUB_OFFLINE": "0",
    "NO_PROXY": "127.0.0.1",
}
root = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return shutil.copytree(original, tmp_path / "copy")


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def refused(folder: Path, text: str, **settings: object) -> None:
    with pytest.raises(UnusableCheckpoint, match=text):
        load(folder, **settings)


def flip_a_byte(file: Path, offset: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 1
    file.write_bytes(content)


def test_a_missing_tensor(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.pop(NORM))
    refused(folder, f"{NORM} is missing")


def test_a_head_that_is_not_tied_must_be_there(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.pop("lm_head.weight"))
    refused(folder, "lm_head.weight is missing")
    edit_config(folder, {"tie_word_embeddings": True})
    load(folder)


def test_a_tensor_too_many(folder: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.bias"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(32)}))
    refused(folder, f"1 tensors too many, such as {name}")


@pytest.mark.parametrize("shape", [(33,), (2, 16), (32, 1)])
def test_a_tensor_of_another_shape(folder: Path, shape: tuple[int, ...]) -> None:
    edit_weights(folder, lambda tensors: tensors.update({NORM: torch.ones(shape)}))
    refused(folder, re.escape(f"{NORM} is {shape}, the config says (32,)"))


def test_rotary_angles_of_old_checkpoints_are_not_needed(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.zeros(4)}))
    load(folder)


def test_the_same_weights_in_another_layout_are_left_alone(folder: Path) -> None:
    save_file({"tok_embeddings.weight": torch.zeros(1)}, folder / "consolidated.safetensors")
    load(folder)


def test_a_missing_file(folder: Path) -> None:
    make_checkpoint(folder / "parts", max_shard_size="60KB")
    file = sorted((folder / "parts").glob("*.safetensors"))[1]
    file.unlink()
    refused(folder / "parts", f"{file.name} is missing")


@pytest.mark.parametrize(
    "content", [{}, {"weight_map": None}, {"weight_map": ["a.safetensors"]}]
)
def test_an_index_without_a_map(folder: Path, content: dict[str, object]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    refused(folder, "index.json: weight_map")


def test_an_index_of_an_earlier_save_is_ignored(folder: Path, tmp_path: Path) -> None:
    """transformers removes the files that it names, but not the index."""
    again = make_checkpoint(tmp_path / "again", max_shard_size="60KB")
    make_checkpoint(again)
    assert (again / "model.safetensors.index.json").exists()
    (request,) = requests([prompt(20)])
    assert run(load(again), [request]) == run(load(folder), [request])


def test_one_whole_file_comes_before_the_files_of_another_save(
    original: Path, folder: Path, tmp_path: Path
) -> None:
    """As in transformers, where both are complete."""
    sharded = make_checkpoint(tmp_path / "sharded", max_shard_size="60KB")
    for file in sharded.glob("model*.safetensors*"):
        shutil.copy(file, folder)
    edit_weights(folder, lambda tensors: tensors[NORM].fill_(3.0))
    assert open_checkpoint(str(folder)).weight_files == [folder / "model.safetensors"]
    assert load(folder).info.fingerprint != load(original).info.fingerprint


def test_files_that_an_index_names_beside_the_whole_one_are_read(folder: Path) -> None:
    more, index = folder / "more.safetensors", folder / "model.safetensors.index.json"
    tensors = load_file(folder / "model.safetensors")
    save_file({NORM: tensors.pop(NORM)}, more)
    save_file(tensors, folder / "model.safetensors")
    names = {**dict.fromkeys(tensors, "model.safetensors"), NORM: more.name}
    index.write_text(json.dumps({"weight_map": names}))
    assert len(open_checkpoint(str(folder)).weight_files) == 2
    load(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "no safetensors files")


@pytest.mark.parametrize("kept", [0, 7, 1000, -1])
def test_half_a_file(folder: Path, kept: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    refused(folder, "model.safetensors")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_settings_that_are_none(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    refused(folder, name)


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


def test_a_model_we_do_not_run(folder: Path) -> None:
    edit_config(folder, {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})
    refused(folder, "T5ForConditionalGeneration.*Llama.*DeepseekV3.*models.md says what works")
    refused(folder, "T5.*LlamaForCausalLM.*Mistral.*Qwen2.*Qwen3", model_impl="pdserve")


def test_more_than_the_model_was_made_for(folder: Path) -> None:
    refused(folder, "--max-model-len 513 is more than the model's 512", max_model_len=513)


def test_memory_that_holds_no_sequence(folder: Path) -> None:
    refused(folder, "100000 bytes.*--max-model-len 512", kv_cache_memory_bytes=100_000)


def test_memory_that_holds_no_block(folder: Path) -> None:
    refused(folder, "0 blocks of --block-size 1099511.* needs 1$", block_size=1 << 40)


def test_heads_that_do_not_share_evenly(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_attention_heads": 4, "num_key_value_heads": 3}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "4 heads over 3 KV heads")


def test_another_dtype(folder: Path) -> None:
    refused(folder, "dtype int8 is not one of float32", dtype="int8")


@pytest.mark.parametrize("model", ["/no/such/folder", "./no-such-folder", "~/no/folder"])
def test_a_folder_that_is_not_there(model: str) -> None:
    with pytest.raises(UnusableCheckpoint, match=f"{model} is no folder"):
        open_checkpoint(model)


def test_a_name_that_cannot_be_fetched() -> None:
    """In a process of its own, for the hub's address is read once."""
    code = "import engine.checkpoints.checkpoint as it; it.open_checkpoint('nobody/nothing')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, **NOWHERE},
        timeout=30,
        check=False,
    )
    text = ended.stderr.splitlines()[-1]
    assert "UnusableCheckpoint: nobody/nothing is neither a folder nor to be fetched" in text
    assert "Connection refused" in text


def test_a_copy_has_the_same_fingerprint(original: Path, folder: Path) -> None:
    assert fingerprint(folder) == fingerprint(original)
    assert load(folder).info.fingerprint == load(original).info.fingerprint


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("model.safetensors", -1),
        ("model.safetensors", 60_000),
        ("model.safetensors", 100_000),
        ("model.safetensors", 200),
        ("tokenizer.json", 100),
        ("tokenizer_config.json", 10),
        ("config.json", 20),
        ("generation_config.json", 20),
    ],
)
def test_one_byte_makes_another_fingerprint(
    original: Path, folder: Path, name: str, offset: int
) -> None:
    flip_a_byte(folder / name, offset)
    config = open_checkpoint(str(original)).config  # a spoiled one may be unreadable
    assert Checkpoint(folder, config).fingerprint() != fingerprint(original)


def test_a_fingerprint_says_which_setting_and_which_file_it_comes_from(
    original: Path, folder: Path
) -> None:
    flip_a_byte(folder / "model.safetensors", -1)
    ours, theirs = load(original).info, load(folder, model_impl="transformers").info
    names = [name for name in ours.made_of if ours.made_of[name] != theirs.made_of.get(name)]
    assert names == ["model_impl", "rope_factors", "weights"]
    assert (ours.made_of["model_impl"], ours.made_of["quantization"]) == ("pdserve", "none")
    assert ours.fingerprint == fingerprint_of(ours.made_of) != theirs.fingerprint


def fingerprint(folder: Path) -> str:
    return open_checkpoint(str(folder)).fingerprint()


def test_the_settings_of_the_checkpoint_are_taken(folder: Path) -> None:
    edit_config(folder, {"dtype": "bfloat16", "eos_token_id": 7})
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    info = load(folder, dtype="auto").info
    assert (info.kv_dtype, info.max_model_len, info.block_size) == ("bfloat16", 512, 16)
    assert (info.kv_heads, info.eos_token_ids) == (2, (3, 5, 0))


@pytest.mark.parametrize(("hidden_size", "tokens"), [(512, 512), (544, 256)])
def test_a_narrow_model_runs_longer_batches(
    tmp_path: Path, hidden_size: int, tokens: int
) -> None:
    """Its products would be too small to keep a processor's arithmetic busy."""
    folder = make_checkpoint(tmp_path / "model", hidden_size=hidden_size)
    assert load(folder).scheduler.sequences.limits.max_tokens == tokens


def test_a_spoiled_header_has_no_fingerprint(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"[]")
    with pytest.raises(UnusableCheckpoint, match="no safetensors header"):
        fingerprint(folder)


class Terminal(io.StringIO):
    """A standard error that somebody watches."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    load(folder)
    assert "loading weights" in terminal.getvalue()


def test_a_log_sees_nothing(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(load(folder), requests([prompt(5)]))
    assert capfd.readouterr() == ("", "")

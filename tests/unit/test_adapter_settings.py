"""Which adapters a node loads: said once for all its processes, refused before it loads any."""

from pathlib import Path
from typing import Any

import pytest

from deploy.cli import parse
from deploy.config import DEMO_NAME, UpConfig
from deploy.up import NODE_OPTIONS, _flags
from discovery.registration import Role
from engine.settings import LORA_FLAG, LoraModule, read_lora_modules
from node.config import NodeConfig
from node.engine_job import engine_process_config

TWO = ("sql=/adapters/sql", "law=/adapters/law=2")
AS_VLLM = '{"name": "law", "path": "/adapters/law=2", "base_model_name": "m"}'
READ = (LoraModule(name="sql", path="/adapters/sql"), LoraModule(name="law", path=TWO[1][4:]))


def node(*words: str, file: Path | None = None) -> NodeConfig:
    _, bound = parse(["decode", "--model", "m", *words], file)
    config = bound.arguments["config"]
    assert isinstance(config, NodeConfig)
    return config


def test_a_flag_a_variable_and_a_file_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for text in TWO for word in (LORA_FLAG, text)]
    assert node(*words).lora_modules == TWO
    assert read_lora_modules(node(LORA_FLAG, TWO[0], LORA_FLAG, AS_VLLM).lora_modules)[1].path
    file = tmp_path / "pdserve.toml"
    file.write_text(f"[decode]\nlora_modules = {list(TWO)}\n")
    assert node(file=file).lora_modules == TWO
    monkeypatch.setenv("PDSERVE_LORA_MODULES", " ".join(TWO))
    assert node().lora_modules == TWO


def test_a_path_may_contain_what_ends_a_name_and_json_is_understood() -> None:
    assert read_lora_modules(TWO) == READ
    assert [one.path for one in read_lora_modules((TWO[0], AS_VLLM))] == [
        one.path for one in READ
    ]


def test_the_engine_process_is_told_of_them() -> None:
    config = NodeConfig(model="m", lora_modules=TWO)
    told = engine_process_config(Role.DECODE, config, "n", "h")
    assert told.engine.lora_modules == TWO


def test_a_cluster_tells_all_its_nodes() -> None:
    words = _flags(UpConfig(lora_modules=(TWO[0], AS_VLLM)), NODE_OPTIONS)
    assert node(*words).lora_modules == (TWO[0], AS_VLLM)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"lora_modules": ("sql",)}, "--lora-modules sql: it has to be name=path"),
        ({"lora_modules": ("=/adapters/sql",)}, "name"),
        ({"lora_modules": ("sql=",)}, "path"),
        ({"lora_modules": ('{"name": "sql"}',)}, "path"),
        ({"lora_modules": ("",)}, "--lora-modules must not be empty"),
        ({"lora_modules": ("sql=/a", "sql=/b")}, "two adapters have the name sql"),
        ({"lora_modules": ("m=/a",)}, "--lora-modules: m is the name of the model itself"),
        ({"lora_modules": ("b=/a",), "served_model_name": ("a", "b")}, "b is the name of"),
        ({"lora_modules": ("a\nb=/a",)}, "not printable"),
        ({"lora_modules": ("n" * 513 + "=/a",)}, "too long"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_loaded(
    settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        NodeConfig(model="m", **settings)


def test_a_name_that_the_model_does_not_go_by_is_free() -> None:
    assert NodeConfig(model="m", served_model_name=("a",), lora_modules=("m=/a",)).lora_modules


def test_a_cluster_refuses_the_name_that_its_model_has_by_default() -> None:
    with pytest.raises(ValueError, match=f"{DEMO_NAME} is the name of the model itself"):
        UpConfig(lora_modules=(f"{DEMO_NAME}=/a",))


def test_who_types_it_hears_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        node(LORA_FLAG, "m=/a")
    assert ended.value.code == 2
    assert "m is the name of the model itself" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\nb", "a" * 513])
@pytest.mark.parametrize("command", ["up", "decode"])
def test_a_name_of_the_model_that_no_proxy_takes_is_refused_before_it_is_loaded(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse([command, "--model", "m", "--served-model-name", name])
    assert "too long for a model's name, or not printable" in capsys.readouterr().err

"""The generated code is what the .proto files say."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = sorted((ROOT / "api/grpc/protos").glob("*.proto"))
COMPILER = [sys.executable, "-m", "grpc_tools.protoc", "-I."]


def test_every_proto_has_its_code() -> None:
    folder = ROOT / "api/grpc/protos"
    for ending in ("py", "pyi"):
        code = {path.name for path in folder.glob(f"*_pb2.{ending}")}
        assert code == {f"{path.stem}_pb2.{ending}" for path in PROTOS}
    assert PROTOS


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_the_code_is_that_of_the_proto(proto: Path, tmp_path: Path) -> None:
    """`make protos` writes it. Descriptors are compared: compilers differ in the rest."""
    name, made = proto.relative_to(ROOT), f"--python_out={tmp_path}"
    subprocess.run([*COMPILER, made, name.as_posix()], cwd=ROOT, check=True)
    code = name.with_name(f"{proto.stem}_pb2.py")
    assert descriptor(ROOT / code) == descriptor(tmp_path / code)


def descriptor(code: Path) -> bytes:
    """The serialized descriptor in generated code."""
    (found,) = (
        one.args[0].value
        for one in ast.walk(ast.parse(code.read_text()))
        if isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr == "AddSerializedFile"
        and isinstance(one.args[0], ast.Constant)
    )
    assert isinstance(found, bytes)
    return found

"""How calls begin in a dialect, to walk grammars from there."""

from api.tools.call_formats import ANY_OBJECT, CallableTools, split_marker
from api.tools.dialects.dialect import Dialect
from api.tools.dialects.known import DIALECTS

STARTS = {"kimi_k3": "<|open|>tools"}


def mark_of(dialect: Dialect, template: str) -> str:
    """The marker that calls begin with."""
    assert dialect.write
    offer = CallableTools({"trip": ANY_OBJECT}, parallel=False, template=template)
    return split_marker(dialect.write(offer))[0]


def start_of(name: str, template: str) -> str:
    """What a call begins with, and nothing else."""
    return STARTS.get(name) or mark_of(DIALECTS[name], template)

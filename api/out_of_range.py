"""Finds the number of a JSON body that is too large to be read. Pure.

msgspec says where it stands only by the numbers of elements: an object's key is unknown.
"""

import re
from collections.abc import Sequence

import msgspec

from api.wire import UNREADABLE

OUT_OF_RANGE = "Number out of range"
STEP = re.compile(r"\[(\.\.\.|[0-9]+)\]")
LARGEST_SEARCHED = 1 << 20  # bytes of a body: it is read once for each level
LONGEST_SHOWN = 40


def number_out_of_range(data: bytes, said: str) -> tuple[str, str] | None:
    """The field and what is wrong with it, if this is what msgspec `said`, and it is found."""
    if not said.startswith(OUT_OF_RANGE) or len(data) > LARGEST_SEARCHED:
        return None
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        found = _search(data, STEP.findall(said))
    except UNREADABLE:  # something behind the number is no JSON
        return None
    if found is None:
        return None
    path, shown = found
    shown = shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}…"
    path = path.removeprefix(".")
    return path, f"{path}: the number {shown} is out of range"


def _search(data: bytes, steps: Sequence[str]) -> tuple[str, str] | None:
    path, found = "", data
    for step in steps:
        inner = _bad_member(found) if step == "..." else _element(found, int(step))
        if inner is None:
            return None
        name, found = inner
        path += name
    return path, found.decode()


def _bad_member(data: bytes) -> tuple[str, bytes] | None:
    for name, value in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
        try:
            msgspec.json.decode(value)
        except msgspec.DecodeError:
            return f".{name}", bytes(value)
    return None


def _element(data: bytes, number: int) -> tuple[str, bytes]:
    values = msgspec.json.decode(data, type=list[msgspec.Raw])
    return f"[{number}]", bytes(values[number])

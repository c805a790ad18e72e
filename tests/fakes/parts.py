"""What a model consists of."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass


def parts_of(part: object) -> Iterator[object]:
    """`part` itself and everything within, at any depth, in the order of the model."""
    yield part
    if isinstance(part, tuple):
        for one in part:
            yield from parts_of(one)
    elif is_dataclass(part):
        for field in fields(part):
            yield from parts_of(getattr(part, field.name))

"""Refuses numbers in a JSON Schema that a grammar would not have exactly. Pure.

llguidance keeps numbers as doubles, so that 2**53 + 1 becomes 2**53, and writes some of them
with as few digits as tell them apart, so that 2**64 becomes 18446744073709552000. Of such large
numbers only those that survive are let through. The limits of int64 and uint64 become the next
number below 2**63 that survives: an answer keeps to them too.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from engine.errors import GrammarRefused
from engine.grammars.schemas import NAMED

SAFE = 2**53
"""Up to here doubles are exact, and so is adding 1 to anything below."""
INT64, UINT64 = 2**63, 2**64
LARGEST_LIMIT = 9_223_372_036_854_656_000
EXACT_VALUES = ("const", "enum")
EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
SIGNS = {"minimum": -1, "exclusiveMinimum": -1, "maximum": 1, "exclusiveMaximum": 1}
NO_SCHEMAS = ("default", "example", "examples")
LONGEST_NUMBER = 40


def with_exact_numbers(schema: Any) -> Any:  # noqa: ANN401  JSON of any shape
    """The same schema, with limits that can be kept; raises GrammarRefused.

    It looks into unknown keywords too, as a `$ref` may lead there.
    """
    if isinstance(schema, list):
        return [with_exact_numbers(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _exact(key, value) for key, value in schema.items()}


def _exact(key: str, value: Any) -> Any:  # noqa: ANN401  JSON of any shape
    if key in NO_SCHEMAS:
        return value
    if key in NAMED and isinstance(value, Mapping):
        return {name: with_exact_numbers(one) for name, one in value.items()}
    if key in EXACT_VALUES:
        _check_values(key, value)
        return value
    if not _is_number(value):
        return with_exact_numbers(value)
    if key in SIGNS:
        return _limit(key, value)
    if key == "multipleOf" and abs(value) > SAFE:
        raise _refusal(key, value)
    return value


def _limit(key: str, value: float) -> float:
    """The limit, or a tighter one for those of int64 and uint64."""
    sign = SIGNS[key]
    if INT64 - (key == "maximum") <= sign * value <= UINT64:
        return sign * LARGEST_LIMIT
    exact = abs(value) < SAFE if key in EXCLUSIVE else abs(value) < INT64 and _survives(value)
    if not exact:
        raise _refusal(key, value)
    return value


def _check_values(key: str, value: Any) -> None:  # noqa: ANN401  JSON of any shape
    """Check all integers in a value; others are doubles anyway."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_values(key, one)
    elif isinstance(value, int) and not (_is_int64(value) or _survives(value)):
        raise _refusal(key, value)


def _is_int64(value: int) -> bool:
    """Whether it is written as an integer, and is a double, too."""
    return abs(value) < INT64 and int(float(value)) == value


def _survives(value: float) -> bool:
    """Whether it is the same number as the shortest text of the nearest double."""
    if abs(value) <= SAFE:
        return True
    try:
        return Decimal(repr(float(value))) == value
    except OverflowError:
        return False


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refusal(key: str, value: float) -> GrammarRefused:
    text = str(value)
    if len(text) > LONGEST_NUMBER:
        text = f"{text[:LONGEST_NUMBER]}…"
    return GrammarRefused(
        f"JSON schema: {key} has {text}, which cannot be kept exactly: use one within ±2^53"
    )

"""Checks of settings; each error names the flag."""

from dataclasses import fields
from math import inf
from typing import Any

from discovery.address import HIGHEST_PORT, format_address, parse_address
from discovery.errors import MalformedAddress

LARGEST = (1 << 63) - 1  # integer in a message
LARGEST_DESCRIPTOR = (1 << 31) - 1


def at_least(least: float, name: str, value: float | None) -> None:
    """Raises ValueError if the value is less, infinite or nan; None is allowed."""
    if value == inf:
        raise ValueError(f"{_flag(name)} {value} has to be finite")
    if value is not None and not value >= least:
        raise ValueError(f"{_flag(name)} {value} has to be at least {least}")


def at_most(most: float, name: str, value: float | None) -> None:
    """Raises ValueError if the value is more; None is allowed."""
    if value is not None and value > most:
        raise ValueError(f"{_flag(name)} {value} has to be at most {most}")


def is_port(name: str, value: int) -> None:
    """Raises ValueError if the value is not a port; 0 is allowed."""
    if not 0 <= value <= HIGHEST_PORT:
        raise ValueError(f"{_flag(name)} {value} is no port")


def is_descriptor(name: str, value: int | None) -> None:
    """Raises ValueError if the value cannot be the number of an open file; None is allowed."""
    at_least(0, name, value)
    at_most(LARGEST_DESCRIPTOR, name, value)


def is_host(name: str, value: str) -> None:
    """Raises ValueError if the value is neither a host's name nor an address."""
    try:
        parse_address(format_address(value, HIGHEST_PORT))
    except MalformedAddress as error:
        brackets = "; an IPv6 address has no brackets here" if value[:1] == "[" else ""
        hint = brackets or in_ascii(value)
        raise ValueError(f"{_flag(name)} {value} is no host{hint}") from error


def in_ascii(address: str) -> str:
    """A hint for a name with other letters: how it has to be written; or else nothing."""
    host, colon, port = address.partition(":")
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        return ""
    return "" if host.isascii() else f"; write it as {name}{colon}{port}"


def not_empty(config: Any) -> None:  # noqa: ANN401  any dataclass
    """Raises ValueError for an empty string in any field: a variable that was not set."""
    for field in fields(config):
        value = getattr(config, field.name)
        if value == "" or (isinstance(value, tuple) and "" in value):
            raise ValueError(f"{_flag(field.name)} must not be empty")


def fits_in_messages(config: Any) -> None:  # noqa: ANN401  any dataclass
    """Raises ValueError for a field that no process could be told: a number of more than 64
    bits, or text that is not UTF-8, such as a path of any bytes.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int):
                at_most(LARGEST, field.name, one)
                at_least(-LARGEST, field.name, one)
            elif isinstance(one, str) and not is_utf8(one):
                raise ValueError(f"{_flag(field.name)} is no UTF-8")


def is_utf8(value: str) -> bool:
    """Whether text of a command line or a variable is; Python keeps other bytes in it."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")

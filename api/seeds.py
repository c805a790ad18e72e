"""Converts seeds of clients to those of the engine."""

from hashlib import blake2b

from engine.request import LARGEST_SEED

NO_SEED = -1  # as vLLM has it


def default_seed(request_id: str) -> int:
    """The seed where a client gives none: the same on every leg and every retry."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=4).digest(), "little")


def resolve_seed(given: int | None, request_id: str) -> int:
    """The client's seed as unsigned 64 bits, or the default; raises ValueError for more."""
    if given is None or given == NO_SEED:
        return default_seed(request_id)
    if not -(LARGEST_SEED // 2) <= given < LARGEST_SEED:
        raise ValueError("seed does not fit into 64 bits")
    return given % LARGEST_SEED

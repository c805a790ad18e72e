"""Seeds, as clients give them and as the engine wants them."""

from hashlib import blake2b

from engine.request import LARGEST_SEED

NO_SEED = -1  # as vLLM has it


def seed_of(request_id: str) -> int:
    """A seed for a client that gave none: the same on every leg and every try."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=4).digest(), "little")


def chosen_seed(given: int | None, request_id: str) -> int:
    """Any 64 bits, with a sign or without; raises ValueError for more."""
    if given is None or given == NO_SEED:
        return seed_of(request_id)
    if not -(LARGEST_SEED // 2) <= given < LARGEST_SEED:
        raise ValueError("seed does not fit into 64 bits")
    return given % LARGEST_SEED

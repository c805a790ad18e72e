"""Prefix hashes: one for every STRIDE tokens, each chained to the one before it.

A hash stands for all tokens up to its end, as nodes' block hashes do: two prompts with a common
prefix have its hashes in common. The cache namespace is hashed in.
"""

from array import array
from hashlib import blake2b

STRIDE = 64  # tokens
HASH_BYTES = 16
TOKEN_BYTES = 4
PrefixHashes = tuple[bytes, ...]


def hash_prefixes(
    namespace: bytes, tokens: tuple[int, ...], known: PrefixHashes = ()
) -> PrefixHashes:
    """The hashes of the first STRIDE tokens, of twice as many, and so on; the rest has none.

    `known`: hashes of the first tokens, if they were computed before.
    """
    data = memoryview(array("I", tokens[len(known) * STRIDE :]).tobytes())
    step, names = STRIDE * TOKEN_BYTES, list(known)
    name = known[-1] if known else blake2b(namespace, digest_size=HASH_BYTES).digest()
    for end in range(step, len(data) + 1, step):
        name = blake2b(data[end - step : end], key=name, digest_size=HASH_BYTES).digest()
        names.append(name)
    return tuple(names)

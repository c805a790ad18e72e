"""Names of tokens: one for every STRIDE of them, each made from the one before it.

So a name stands for all tokens up to its end, as a node's block hashes do, and two prompts that
begin alike have the same names as far as they are alike. Another salt, other names.
"""

from array import array
from hashlib import blake2b

STRIDE = 64  # tokens
HASH_BYTES = 16
TOKEN_BYTES = 4
PrefixHashes = tuple[bytes, ...]


def hash_prefixes(salt: str, tokens: tuple[int, ...], known: PrefixHashes = ()) -> PrefixHashes:
    """Of the first STRIDE tokens, of twice as many, and so on; what is left over has none.

    `known` are those that the first of the tokens are known to have.
    """
    data = memoryview(array("I", tokens[len(known) * STRIDE :]).tobytes())
    step, names = STRIDE * TOKEN_BYTES, list(known)
    name = known[-1] if known else blake2b(salt.encode(), digest_size=HASH_BYTES).digest()
    for end in range(step, len(data) + 1, step):
        name = blake2b(data[end - step : end], key=name, digest_size=HASH_BYTES).digest()
        names.append(name)
    return tuple(names)

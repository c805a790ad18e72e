"""How a node's KV bytes lie, and whose one node can read. Torch-free; travels on the wire."""

import msgspec


class KvLayout(msgspec.Struct, frozen=True):
    """`block_bytes` has the size of one block in each region."""

    dtype: str
    block_size: int
    kv_heads: int
    block_bytes: tuple[int, ...]
    tensor_parallel_size: int = 1


def can_pull(theirs: KvLayout, ours: KvLayout) -> str | None:
    """None if a node of our layout can read theirs as it is, or else why not."""
    for name in KvLayout.__struct_fields__:
        their, our = getattr(theirs, name), getattr(ours, name)
        if their != our:
            return f"{name} is {their} there and {our} here"
    return None

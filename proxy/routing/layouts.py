"""Which KV layouts are compatible, as registered by their nodes."""

import msgspec

from discovery.misfits import Difference, first_difference
from discovery.registration import Layout
from kv_transfer.layout import KvLayout, difference


def layout_difference(ours: Layout | None, theirs: Layout | None) -> Difference | None:
    """The first field that makes two layouts incompatible; None: one node can read the other's
    KV.

    A layout that cannot be parsed is of another version, and only fits an equal one.
    """
    try:
        here, there = _read(ours), _read(theirs)
    except msgspec.ValidationError:
        return first_difference(ours, theirs)
    found = difference(there, here)
    return found and (found[0], found[2], found[1])


def _read(layout: Layout | None) -> KvLayout:
    return msgspec.convert(layout, KvLayout)

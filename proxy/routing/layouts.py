"""Which layouts of KV fit each other, as their nodes registered them."""

import msgspec

from discovery.misfits import Difference, first_difference
from discovery.registration import Layout
from kv_transfer.layout import KvLayout, difference


def layout_difference(ours: Layout | None, theirs: Layout | None) -> Difference | None:
    """The first field that keeps two layouts apart; None: one node can read the other's KV.

    A layout that we cannot read is of another version, and fits its like only.
    """
    try:
        here, there = _read(ours), _read(theirs)
    except msgspec.ValidationError:
        return first_difference(ours, theirs)
    found = difference(there, here)
    return found and (found[0], found[2], found[1])


def _read(layout: Layout | None) -> KvLayout:
    return msgspec.convert(layout, KvLayout)

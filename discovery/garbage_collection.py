"""Keeps the garbage collector from repeatedly traversing everything that was loaded."""

import gc

# objects between two collections of generation 0; a request creates some hundreds
MOST_NEW = 10_000


def freeze_loaded_objects() -> None:
    """Call once everything is loaded; else each full collection takes tens of milliseconds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW)

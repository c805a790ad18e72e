"""What was loaded stays: it is not looked at again and again, and lies where it is found soon.

A proxy has thousands of small functions and tables, and between two requests the processor
forgets where they are.
"""

import gc

from engine.large_pages import gather, heap

MOST_NEW = 10_000  # objects between two looks at the youngest; a request makes some hundreds


def settle() -> None:
    """To be called once everything is loaded: the collector of cycles would take tens of
    milliseconds each time, otherwise.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(MOST_NEW)
    gather(heap())


def settle_more() -> None:
    """What was loaded since then lies well, too; from any thread."""
    gather(heap())

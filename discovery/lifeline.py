"""The tie between a process and the one that started it: when that one ends, so does this.

A pipe or socket is held open by the starter. However that process dies, the system closes its
end, and the read below comes back.
"""

import json
import os
import threading

ORPHANED = 3  # exit status


def end_with(fd: int) -> None:
    """End this process at once when the other end of `fd` is closed."""
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    while True:
        try:
            said = os.read(fd, 1)
        except OSError:  # reset by a peer that was killed
            said = b""
        if not said:
            os._exit(ORPHANED)


def tell(fd: int, **facts: str) -> None:
    """Say one line to the starter, as JSON: that we are ready, and where."""
    os.write(fd, json.dumps(facts).encode() + b"\n")

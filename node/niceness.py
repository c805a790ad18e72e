"""Sets the niceness of a process: how much it yields to others on the same cores."""

import os
from contextlib import suppress

LEAST_PRIORITY = 19
TASKS = "/proc/{}/task"


def set_niceness(niceness: int, process: int | str = "self") -> bool:
    """Set it for all threads of a process; False if that is not permitted.

    On Linux each thread has its own niceness, inherited from the thread that started it.
    Lowering it requires CAP_SYS_NICE.
    """
    wanted = min(niceness, LEAST_PRIORITY)
    try:
        for thread in os.listdir(TASKS.format(process)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread), wanted)
    except FileNotFoundError:
        return True  # the process has ended
    except PermissionError:
        return False
    return True

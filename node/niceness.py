"""Sets the niceness of a process: how much it yields to others on the same cores."""

import os
from contextlib import suppress

LEAST_PRIORITY = 19
TASKS = "/proc/{}/task"


def set_niceness(niceness: int, process: int | str = "self") -> bool:
    """For all threads of a process; False where a lower one is not for us to take.

    On Linux each thread has its own, which those that it starts begin with. To give way less
    than before takes CAP_SYS_NICE.
    """
    wanted = min(niceness, LEAST_PRIORITY)
    try:
        for thread in os.listdir(TASKS.format(process)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, int(thread), wanted)
    except FileNotFoundError:
        return True  # it has ended
    except PermissionError:
        return False
    return True

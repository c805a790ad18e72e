"""The messages between the processes of this benchmark."""

import msgspec

HERE = "127.0.0.1"
SCRIPT = "/script"


class Script(msgspec.Struct):
    """How scripted nodes answer: `burst` tokens of each stream every `step_s` seconds."""

    step_s: float = 0.02
    burst: int = 1


class NodeCounts(msgspec.Struct):
    """How many tokens the scripted nodes have sent."""

    tokens: int = 0


class LoadJob(msgspec.Struct, kw_only=True):
    """A closed loop of `streams` clients, watched for `window_s` once it runs smoothly.

    The first requests are of all `lengths`, later ones of the last, so that the ends of answers
    are spread from the beginning. Who is answered waits for up to `pause_s`, at random: clients
    know nothing of nodes' steps. `pids` are processes whose time is to be told. With `spaces`
    tokens are text.
    """

    address: str
    path: str
    body: str
    lengths: list[int]
    pause_s: float
    settle_s: float
    streams: int
    window_s: float
    pids: list[int] = []
    spaces: bool = False


class LoadResult(msgspec.Struct, kw_only=True):
    """What a load generator counted within its job's window.

    `firsts` are times to first token in seconds; `reads` counts reads from sockets.
    """

    firsts: list[float]
    started: int
    ended: int
    events: int
    tokens: int
    reads: int
    seconds: float
    cpu_s: dict[str, float]
    own_cpu_s: float

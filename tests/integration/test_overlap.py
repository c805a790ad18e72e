"""KV is fetched while the rest of its prompt is computed, chunk by chunk."""

from engine.api import StepResult
from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone

CHUNK, CHUNKS = 4, 10
LAG = 2  # steps: to hear of a chunk, and what the local link takes


class Watching(FakeEngine):
    """Notes what of its KV had been copied at the end of each of its steps."""

    def __init__(self, seen: list[int], cluster: list[Cluster]) -> None:
        super().__init__(chunk=CHUNK)
        self.seen, self.cluster = seen, cluster

    def step(self) -> StepResult:
        result = super().step()
        if result.filled:
            self.seen.append(self.cluster[0].sinks[0].blocks_copied)
        return result


async def test_a_chunk_is_copied_while_the_next_ones_are_computed() -> None:
    seen, known = list[int](), list[Cluster]()
    cluster = Cluster(engine=lambda: Watching(seen, known))
    known.append(cluster)
    request = Request(RequestId("r"), tuple(range(CHUNK * CHUNKS)), Sampling(4))
    assert await cluster.ask(request) == alone(request)
    assert len(seen) == CHUNKS
    assert all(copied >= number - LAG for number, copied in enumerate(seen, 1)), seen
    cluster.settle()
    assert cluster.leaked_blocks == 0

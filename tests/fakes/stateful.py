"""An engine whose model keeps a state beside KV: each token's KV depends on that, not on KV."""

from collections.abc import Sequence as Seq

from engine.request import RequestId
from engine.scheduling.chunk import Chunk, SampledTokens
from engine.scheduling.sequence import Sequence
from tests.fakes.engine import FakeEngine
from tests.fakes.model import TOKEN_BYTES


class StatefulEngine(FakeEngine):
    """The state is the KV of the last token computed, in the last of a sequence's blocks.

    A token that is computed twice, or from another's state, or one that was not carried over,
    leads to another answer.
    """

    def __init__(self, *, state_blocks: int = 2, saves: int = 4, **limits: int) -> None:
        super().__init__(state_blocks=state_blocks, **limits)
        assert self.kv.snapshots is not None
        self.kv.snapshots.least_saved = saves

    def _run(self, chunks: Seq[Chunk]) -> dict[RequestId, SampledTokens]:
        assert not any(chunk.drafts for chunk in chunks), "no draft may change a state"
        moving = [(one, one.seq.trail) for one in chunks if one.seq.trail is not None]
        for source, target in (copy for one, at in moving for copy in one.begins_from(at)):
            self._copy(source, target)
        drawn = super()._run(chunks)
        for source, target in (copy for one, at in moving for copy in one.leaves(at)):
            self._copy(source, target)
        return drawn

    def _copy(self, source: int, target: int) -> None:
        size = self.info.block_size * TOKEN_BYTES
        self.memory[target * size : (target + 1) * size] = self.memory[
            source * size : (source + 1) * size
        ]

    def _read(self, seq: Sequence, upto: int) -> bytes:
        kv, at = super()._read(seq, upto), self._at(seq)
        return kv[:-TOKEN_BYTES] + self.memory[at : at + TOKEN_BYTES] if upto else b""

    def _write(self, seq: Sequence, start: int, kv: bytes) -> None:
        super()._write(seq, start, kv)
        at = self._at(seq)
        self.memory[at : at + TOKEN_BYTES] = kv[-TOKEN_BYTES:]

    def _at(self, seq: Sequence) -> int:
        return seq.state_blocks[-1] * self.info.block_size * TOKEN_BYTES

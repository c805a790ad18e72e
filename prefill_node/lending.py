"""What a node lends to other nodes' prefix caches: KV of prompts and of answers."""

from dataclasses import dataclass, field

from engine.api import Engine
from kv_transfer.api import KvSource, Sealed, Settled


@dataclass(slots=True)
class CacheLender:
    """Holds the lent blocks from `answer_requests` until their offer has settled."""

    engine: Engine
    source: KvSource
    _names: dict[str, str] = field(default_factory=dict)  # of loans, by ticket id
    _count: int = 0

    def answer_requests(self) -> None:
        """Answer each loan request with the leading blocks it names, as many as are here."""
        size = self.engine.info.block_size
        for asked in self.source.loan_requests():
            self._count += 1
            name = f"loan-{self._count}"
            if not (blocks := self.engine.lend(name, asked.keys)):
                self.source.decline(asked)
                continue
            # the hash covers these tokens and all before them
            last = asked.keys[len(blocks) - 1]
            sealed = Sealed(len(blocks) * size, 0, tokens_digest=last)
            self._names[self.source.lend(asked, name, blocks, sealed)] = name

    def settle(self, settled: Settled) -> bool:
        """Take the blocks back; False if this ticket is not a loan."""
        name = self._names.pop(settled.ticket_id, None)
        if name is not None:
            self.engine.give_back(name)
        return name is not None

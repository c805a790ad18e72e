"""Ranks add up, and are not waited for without end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from engine.errors import RankLost
from engine.sharding.group import LOOPBACK, RankGroup
from engine.sharding.shard import Shard

CPU = torch.device("cpu")
Answer = TypeVar("Answer")


def together(ranks: int, work: Callable[[RankGroup], Answer]) -> list[Answer]:
    """What each rank comes to, all at once."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)

    def one(rank: int) -> Answer:
        mine = store if rank == 0 else TCPStore(LOOPBACK, store.port)
        return work(RankGroup.connect(mine, Shard(rank, ranks), CPU))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_rank_has_the_sum(dtype: torch.dtype) -> None:
    parts = torch.arange(12, dtype=dtype).view(3, 4)
    sums = together(3, lambda group: group.all_reduce(parts[group.shard.rank].clone()))
    for found in sums:
        assert torch.equal(found, parts.sum(0))


def test_columns_stand_beside_one_another_also_where_some_have_more() -> None:
    whole = torch.arange(14.0).view(2, 7)

    def work(group: RankGroup) -> torch.Tensor:
        part = group.shard.part(7)
        return group.all_gather_columns(whole[:, part.start : part.stop], 7)

    for found in together(3, work):
        assert torch.equal(found, whole)


def test_the_least_and_what_the_first_has_are_told_to_all() -> None:
    assert together(3, lambda group: group.all_reduce_min(9 - group.shard.rank)) == [7, 7, 7]
    told = together(2, lambda group: group.broadcast(torch.full((3,), float(group.shard.rank))))
    assert all(one.tolist() == [0.0] * 3 for one in told)


def test_a_rank_that_stands_still_is_given_up() -> None:
    """Instead of waiting for it for good."""
    over = Event()

    def work(group: RankGroup) -> str:
        if group.shard.rank == 1:
            over.wait(30)
            return "nothing"
        group.set_stall_timeout(stall_s=0.1)
        try:
            group.all_reduce(torch.ones(3))
        except RankLost as error:
            return str(error)
        finally:
            over.set()
        return "a sum"

    assert together(2, work)[0].startswith("another rank is gone, or late")


def test_a_group_ends_when_gloo_has_let_go_of_the_last_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its destructor holds the interpreter's lock while it waits for a thread that wants it."""
    waited = list[float]()
    monkeypatch.setattr("engine.sharding.group.time.sleep", waited.append)
    group = RankGroup(Shard(0, 1), None, CPU)
    holders = iter([2, 2, 1])
    monkeypatch.setattr("engine.sharding.group._holders", lambda _: next(holders))
    group.last[:] = [[torch.zeros(3)], "options"]
    del group
    assert len(waited) == 2 + 1, "and once more, for whoever counts down before it waits"


def test_what_a_collective_was_given_is_known_until_the_next_one() -> None:
    def work(group: RankGroup) -> bool:
        first, second = torch.ones(2), torch.ones(3)
        group.all_reduce(first)
        group.broadcast(second)
        (told,) = (one for one in group.last if isinstance(one, list))
        return told[0] is second

    assert together(2, work) == [True, True]

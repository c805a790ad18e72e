"""Ranks add up, and are not waited for without end."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TypeVar

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from engine.errors import RankLost
from engine.sharding.group import LOOPBACK, Group
from engine.sharding.share import Share

CPU = torch.device("cpu")
Answer = TypeVar("Answer")


def together(ranks: int, work: Callable[[Group], Answer]) -> list[Answer]:
    """What each rank comes to, all at once."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)

    def one(rank: int) -> Answer:
        mine = store if rank == 0 else TCPStore(LOOPBACK, store.port)
        return work(Group.meet(mine, Share(rank, ranks), CPU))

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_rank_has_the_sum(dtype: torch.dtype) -> None:
    parts = torch.arange(12, dtype=dtype).view(3, 4)
    sums = together(3, lambda group: group.sum(parts[group.share.rank].clone()))
    for found in sums:
        assert torch.equal(found, parts.sum(0))


def test_columns_stand_beside_one_another_also_where_some_have_more() -> None:
    whole = torch.arange(14.0).view(2, 7)

    def work(group: Group) -> torch.Tensor:
        part = group.share.part(7)
        return group.columns(whole[:, part.start : part.stop], 7)

    for found in together(3, work):
        assert torch.equal(found, whole)


def test_the_least_and_what_the_first_has_are_told_to_all() -> None:
    assert together(3, lambda group: group.least(9 - group.share.rank)) == [7, 7, 7]
    told = together(2, lambda group: group.told(torch.full((3,), float(group.share.rank))))
    assert all(one.tolist() == [0.0] * 3 for one in told)


def test_a_rank_that_stands_still_is_given_up() -> None:
    """Instead of waiting for it for good."""
    over = Event()

    def work(group: Group) -> str:
        if group.share.rank == 1:
            over.wait(30)
            return "nothing"
        group.go(stall_s=0.1)
        try:
            group.sum(torch.ones(3))
        except RankLost as error:
            return str(error)
        finally:
            over.set()
        return "a sum"

    assert together(2, work)[0].startswith("another rank is gone, or late")

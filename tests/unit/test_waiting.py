"""A thread that sleeps wakes for everything that it said it waits for, and for nothing else."""

import os
import select

from kv_transfer.side_channel.poller import Poller
from kv_transfer.side_channel.wakeup import Wakeup

AT_ONCE, LONG_S = 0.0, 30.0


def test_a_wakeup_that_nobody_hears_does_not_keep_who_rings_it() -> None:
    wakeup, waiting = Wakeup(), Poller()
    waiting.watch(wakeup.fileno())
    for _ in range(100_000):
        wakeup.ring()
    waiting.wait({}, LONG_S)  # comes back at once
    assert waiting.ready_now()
    wakeup.close()


def test_descriptors_that_are_not_named_any_more_wake_nobody() -> None:
    waiting, (read, write) = Poller(), os.pipe()
    try:
        os.write(write, b"x")
        waiting.wait({read: select.POLLIN}, LONG_S)  # comes back at once
        assert waiting.ready_now() == {read: select.POLLIN}
        waiting.wait({write: select.POLLIN}, AT_ONCE)
        assert waiting.ready_now() == {}
        waiting.wait({write: select.POLLIN | select.POLLOUT}, LONG_S)
        assert waiting.ready_now() == {write: select.POLLOUT}
        waiting.wait({}, AT_ONCE)
        assert waiting.ready_now() == {}
    finally:
        os.close(read)
        os.close(write)


def test_who_is_forgotten_wakes_nobody() -> None:
    waiting, (read, write) = Poller(), os.pipe()
    try:
        os.write(write, b"x")
        waiting.watch(read)
        waiting.watch(write, select.POLLOUT)
        assert waiting.ready_now() == {read: select.POLLIN, write: select.POLLOUT}
        waiting.watch(write, select.POLLIN)
        waiting.unwatch(read)
        assert waiting.ready_now() == {}
    finally:
        os.close(read)
        os.close(write)

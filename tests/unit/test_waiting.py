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


def test_a_number_that_an_interest_had_is_watched_for_its_new_owner() -> None:
    """A mover closes a socket, and the next sink to connect gets its number in that turn."""
    waiting, (number, write), (read, into) = Poller(), os.pipe(), os.pipe()
    try:
        waiting.wait({number: select.POLLIN}, AT_ONCE)
        os.dup2(read, number)
        waiting.watch(number)
        waiting.wait({}, AT_ONCE)
        os.write(into, b"x")
        assert waiting.ready_now() == {number: select.POLLIN}
        waiting.unwatch(number)
        waiting.wait({number: select.POLLIN}, LONG_S)  # comes back at once
        assert waiting.ready_now() == {number: select.POLLIN}
    finally:
        for one in (number, write, read, into):
            os.close(one)

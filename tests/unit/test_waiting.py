"""A thread that sleeps wakes for everything that it said it waits for, and for nothing else."""

import os

import zmq

from kv_transfer.sockets import Wakeup
from kv_transfer.waiting import Waiting, has_message

AT_ONCE, LONG_S = 0.0, 30.0


def test_a_wakeup_that_nobody_hears_does_not_keep_who_rings_it() -> None:
    wakeup, waiting = Wakeup(), Waiting()
    waiting.add(wakeup)
    for _ in range(100_000):
        wakeup.ring()
    waiting.wait({}, LONG_S)  # comes back at once
    assert waiting._poller.poll(0)
    wakeup.close()


def test_descriptors_that_are_not_named_any_more_wake_nobody() -> None:
    waiting, (read, write) = Waiting(), os.pipe()
    try:
        os.write(write, b"x")
        waiting.wait({read: zmq.POLLIN}, LONG_S)  # comes back at once
        assert waiting._poller.poll(0) == [(read, zmq.POLLIN)]
        waiting.wait({write: zmq.POLLIN}, AT_ONCE)
        assert waiting._poller.poll(0) == []
        waiting.wait({write: zmq.POLLIN | zmq.POLLOUT}, LONG_S)
        assert waiting._poller.poll(0) == [(write, zmq.POLLOUT)]
        waiting.wait({}, AT_ONCE)
        assert waiting._poller.poll(0) == []
    finally:
        os.close(read)
        os.close(write)


def test_a_socket_that_is_closed_is_not_waited_for() -> None:
    context, waiting = zmq.Context[zmq.Socket[bytes]](), Waiting()
    one, other = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind("inproc://pair")
    other.connect("inproc://pair")
    waiting.add(one)
    assert not has_message(one)
    other.send(b"x")
    waiting.wait({}, LONG_S)
    assert has_message(one)
    assert one.recv() == b"x"
    waiting.close(one)
    assert one.closed
    waiting.wait({}, AT_ONCE)
    other.close()
    context.term()

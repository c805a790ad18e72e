"""A process can tell that the terminal it was started from was hung up."""

import os
import pty

from discovery.terminal import ControllingTerminal


def test_a_terminal_that_is_closed_is_gone_and_a_pipe_is_none() -> None:
    master, slave = pty.openpty()
    reader, writer = os.pipe()
    try:
        found = ControllingTerminal.find((slave, reader, writer))
        assert found.files == [slave]
        assert not found.gone
        os.close(master)
        assert found.gone
        assert not ControllingTerminal.find((reader, writer)).gone
    finally:
        for one in (slave, reader, writer):
            os.close(one)

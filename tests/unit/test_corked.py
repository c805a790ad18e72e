"""Head and first piece are one write, last piece and end too; nothing is kept for longer."""

import asyncio
from typing import cast

import pytest

from proxy.serving.corked import HEAD, LAST, CorkedTransport

START, PIECE, END = HEAD + b"200 OK\r\n\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n"
FINAL = b"e\r\n" + LAST


class Wire:
    """A transport that notes its writes; `closed_after` how many came before its end."""

    def __init__(self) -> None:
        self.writes, self.closed_after = list[bytes](), -1

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed_after = len(self.writes)

    def is_closing(self) -> bool:
        return self.closed_after >= 0


def corked(wire: Wire) -> CorkedTransport:
    return CorkedTransport(cast("asyncio.Transport", wire), asyncio.get_running_loop())


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([START, PIECE], [START + PIECE]),
        ([START, PIECE, PIECE], [START + PIECE, PIECE]),
        ([PIECE, FINAL, END], [PIECE, FINAL + END]),
        ([START, FINAL, END, START, PIECE], [START + FINAL + END, START + PIECE]),
    ],
)
async def test_what_belongs_together_is_one_write(
    writes: list[bytes], expected: list[bytes]
) -> None:
    wire = Wire()
    transport = corked(wire)
    for data in writes:
        transport.write(data)
    assert wire.writes == expected


async def test_nothing_is_kept_beyond_a_turn() -> None:
    wire = Wire()
    corked(wire).write(START)
    assert wire.writes == []
    await asyncio.sleep(0)
    assert wire.writes == [START]


async def test_what_was_written_is_sent_before_the_end() -> None:
    wire = Wire()
    transport = corked(wire)
    transport.write(FINAL)
    transport.close()
    assert (wire.writes, wire.closed_after) == ([FINAL], 1)
    assert transport.is_closing()
    await asyncio.sleep(0)
    assert wire.writes == [FINAL]

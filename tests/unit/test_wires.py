"""The man in the middle knows what a link carries by what really opens one."""

import pytest

from kv_transfer.movers.tcp_requests import SECRET_BYTES
from kv_transfer.side_channel.frames import framed
from kv_transfer.side_channel.introduction import LONGEST_NAME, LONGEST_SAID
from tests.soak.wires import DATA, HTTP, SIDE, kind_of


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_a_request_is_http(method: str) -> None:
    assert kind_of(f"{method} /health HTTP/1.1\r\n".encode()) == HTTP


@pytest.mark.parametrize("length", [1, ord("G"), LONGEST_NAME, LONGEST_SAID])
def test_an_introduction_is_the_side_channels(length: int) -> None:
    assert kind_of(framed(bytes(length))) == SIDE


def test_a_secret_is_of_data_whatever_byte_it_begins_with() -> None:
    kinds = {kind_of(bytes([first]) + b"x" * (SECRET_BYTES - 1)) for first in range(256)}
    assert kinds == {DATA}

"""A node's reply as it comes, piece by piece: events are ready when they are whole."""

import asyncio

import pytest

from api.generator import EndEvent, Event, TicketEvent, TokenEvent
from api.wire import WireError
from engine.request import FinishReason
from kv_transfer.ticket import KvTicket, to_params
from proxy.nodes.answer_size import LEAST_LIMIT
from proxy.nodes.calling import Reply
from proxy.nodes.connection import NodeConnection
from proxy.nodes.patience import ReplyTimeouts
from proxy.nodes.reading import LegReader
from tests.fakes.raw_http import END, SSE, answer, chunk, events
from tests.fakes.taking import Client

PATIENT = ReplyTimeouts(60.0, 60.0)
PARAMS = to_params(KvTicket("t", "e", "h", 1, None))
LAST = {"choices": [{"token_ids": [8], "finish_reason": "length"}]}
LENGTH = FinishReason.LENGTH
KEEP_ALIVE = chunk(b": still here\n\n")


class Wire(asyncio.Transport):
    """Leads nowhere."""

    def write(self, data: object) -> None:
        pass

    def abort(self) -> None:
        pass


class Node:
    """Says what it is told to, to a reply of its own."""

    def __init__(
        self, *, hold: bool = False, ours: bool = True, longest: int = LEAST_LIMIT
    ) -> None:
        self.given_back = list[NodeConnection]()
        self.line = NodeConnection("h:1", self.given_back.append)
        self.line.connection_made(Wire())
        self.line.send(b"GET / HTTP/1.1\r\n\r\n", PATIENT)
        self.reply = Reply(self.line, LegReader(hold, ours, 4, longest), ending_s=60.0)

    def say(self, *data: bytes) -> None:
        for one in data:
            self.line.data_received(one)

    def say_tokens(self, *tokens: int) -> None:
        self.say(*events(*({"choices": [{"token_ids": [one]}]} for one in tokens)))

    def events(self) -> list[Event | None]:
        """All that are ready."""
        found = list[Event | None]()
        while self.reply.ready():
            found.append(self.reply.event)
            if self.reply.event is None:
                break
        return found


async def test_an_answer_that_is_not_streamed_is_one_however_it_is_cut() -> None:
    node = Node(hold=True, ours=False)
    short = {"choices": [{"token_ids": [7], "finish_reason": "length"}]}
    data = answer(200, short | {"kv_transfer_params": PARAMS})
    for at in range(len(data) - 1):
        node.say(data[at : at + 1])
        assert node.line.status == 0 or node.events() == []
    node.say(data[-1:])
    *heard, end = node.events()
    assert [type(event) for event in heard] == [TicketEvent, EndEvent]
    assert end is None
    assert node.given_back == [node.line]


@pytest.mark.parametrize("end", [b"data: {}\n\n", b": still here\n\n"])
async def test_an_event_or_a_comment_is_progress_and_empty_lines_are_none(end: bytes) -> None:
    node = Node()
    node.say(SSE)
    for data, counts in [(end[:-1], False), (end[-1:], True), (b"\n\n", False), (end, True)]:
        node.line._watch.progress_at = 0.0
        node.say(chunk(data))
        assert node.events() == []
        assert (node.line._watch.progress_at > 0) is counts
        assert not node.line._watch._bytes or not counts


async def test_what_has_begun_behind_an_event_counts() -> None:
    node = Node()
    node.say(SSE, chunk(b": still here\n\ndata: 1234567"))
    assert node.events() == []
    assert node.line._watch._bytes == len(b"data: 1234567")


@pytest.mark.parametrize("streamed", [True, False])
async def test_nothing_larger_than_an_answer_can_be_is_kept(streamed: bool) -> None:
    node = Node(ours=False, longest=100)
    head = SSE if streamed else answer(200, "x" * 200)[:-200]
    node.say(head)
    for size in (60, 37):
        node.say(chunk(b"x" * size) if streamed else b"x" * size)
        assert node.events() == []
    node.say(chunk(b"x" * 60) if streamed else b"x" * 60)
    with pytest.raises(WireError, match="of more than 100 bytes"):
        node.events()


async def test_a_stream_is_its_events_however_it_is_cut() -> None:
    node, heard = Node(), list[Event | None]()
    said = [*events({"choices": [{"token_ids": [7]}]}), KEEP_ALIVE, *events(LAST), END]
    node.say(SSE)
    for byte in b"".join(said):
        node.say(bytes([byte]))
        heard += node.events() if None not in heard else []
    assert heard == [TokenEvent((7,)), TokenEvent((8,), LENGTH), None]


async def test_an_answer_that_ends_too_early_gives_its_connection_back_once() -> None:
    """Twice, and two requests would be sent over it at once."""
    node = Node()
    node.say(SSE, *events({"choices": [{"token_ids": [7]}]}), END)
    assert node.reply.ready()
    with pytest.raises(WireError, match="broke off"):
        node.reply.ready()
    node.reply.close()
    node.reply.close()
    assert node.given_back == [node.line]


async def test_so_does_one_that_came_to_its_end() -> None:
    node = Node()
    node.say(SSE, *events(LAST), END)
    assert node.events() == [TokenEvent((8,), LENGTH), None]
    assert node.events() == [None]
    node.reply.close()
    assert node.given_back == [node.line]


async def test_an_end_that_comes_late_is_awaited_and_nothing_else_is_read() -> None:
    node = Node()
    node.say(SSE, *events(LAST))
    assert node.events() == [TokenEvent((8,), LENGTH), None]
    node.reply.close()
    assert not node.given_back
    node.say(*events(LAST))
    assert node.events() == [None]
    node.say(END)
    assert node.given_back == [node.line]


def begun() -> Node:
    """Its first token was taken: the fast path knows what they look like."""
    node = Node()
    node.say(SSE)
    node.say_tokens(5)
    assert node.events() == [TokenEvent((5,))]
    return node


async def test_plain_tokens_are_tapped() -> None:
    node, client = begun(), Client()
    for token in (6, 7):
        node.say_tokens(token)
        assert node.reply.drain_to(client)
    assert client.heard == [6, 7]
    assert node.events() == []


async def test_tokens_that_the_client_does_not_take_are_ready() -> None:
    node, client = begun(), Client(room=0)
    node.say_tokens(6)
    assert not node.reply.drain_to(client)
    node.say_tokens(7)
    assert not node.reply.drain_to(Client()), "what waits comes before what came later"
    assert node.events() == [TokenEvent((6,)), TokenEvent((7,))]


async def test_what_is_more_than_a_token_is_ready() -> None:
    node, client = begun(), Client()
    node.say_tokens(6)
    node.say(*events(LAST))
    assert not node.reply.drain_to(client)
    assert not client.heard
    assert node.events() == [TokenEvent((6, 8), LENGTH), None]


async def test_nothing_is_ready_where_nothing_came() -> None:
    node, client = begun(), Client()
    assert not node.reply.drain_to(client)
    node.say(KEEP_ALIVE)
    assert not node.reply.drain_to(client)
    assert node.events() == []


async def test_a_stream_that_breaks_off_at_the_tap_has_failed() -> None:
    node, client = begun(), Client()
    node.line.connection_lost(None)
    with pytest.raises(ConnectionError):
        node.reply.drain_to(client)


async def test_a_body_that_is_no_stream_and_no_json_is_no_answer() -> None:
    node = Node()
    node.say(answer(200, {"detail": "x"}, kind="text/html"))
    with pytest.raises(WireError):
        node.events()

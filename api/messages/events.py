"""The events of a streamed message, as Anthropic writes them."""

import msgspec
from msgspec import UNSET, UnsetType

from api.messages.errors import MessagesError
from api.messages.shapes import Block, MessageAnswer, MessageUsage, StopReason
from api.usage import Params, Timings


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event: the message is still empty."""

    message: MessageAnswer


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """The second event, which has no data."""


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, still empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The whole signature of a thinking block, at its end."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """More of a tool's input, as JSON."""

    partial_json: str


Delta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """More of the open block."""

    index: int
    delta: Delta


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The open block is complete."""

    index: int


class Stop(msgspec.Struct, frozen=True):
    """The reason for which the message ended."""

    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The message's fields beside its content; the usage is that of the whole message."""

    delta: Stop
    usage: MessageUsage
    kv_transfer_params: Params | UnsetType = UNSET
    pdserve: Timings | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


Event = MessageStart | Ping | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
EMPTY_DELTA_END = b'""}}\n\n'


def frame_of(event: Event | MessagesError) -> bytes:
    """One server-sent event."""
    name = event.__struct_config__.tag
    assert isinstance(name, str)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(event))


def delta_prefix(event: BlockDelta) -> bytes:
    """The frame of an empty delta up to its text: all deltas of a block begin like this."""
    return frame_of(event).removesuffix(EMPTY_DELTA_END)


def delta_frame(begin: bytes, text: str) -> bytes:
    """The frame of one delta."""
    return b"%b%b}}\n\n" % (begin, msgspec.json.encode(text))

"""The events of a streamed response, as OpenAI writes them: named, and numbered from 0."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from api.responses.shapes import Item, Part, Response

NO_DELTA = b'"delta":"","sequence_number":0}'


class ResponseEvent(msgspec.Struct, frozen=True):
    """An event about the response as a whole."""

    type: str
    response: Response
    sequence_number: int


class ItemEvent(msgspec.Struct, frozen=True):
    """An item begins, or is complete."""

    type: str
    output_index: int
    item: Item
    sequence_number: int


class PartEvent(msgspec.Struct, frozen=True):
    """A part of an item begins, or is complete."""

    type: str
    item_id: str
    output_index: int
    content_index: int
    part: Part
    sequence_number: int


class DeltaEvent(msgspec.Struct, frozen=True, kw_only=True):
    """More of a text, or of a call's arguments or input, which belong to no part."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    logprobs: Sequence[Raw] | UnsetType = UNSET
    delta: str = ""
    sequence_number: int = 0


class DoneEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The complete text, arguments or input."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    logprobs: Sequence[Raw] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    sequence_number: int


Event = ResponseEvent | ItemEvent | PartEvent | DeltaEvent | DoneEvent


def frame_of(event: Event) -> bytes:
    """One server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), msgspec.json.encode(event))


def delta_prefix(event: DeltaEvent) -> bytes:
    """The frame of a delta event up to its delta: all deltas of a part begin like this."""
    return frame_of(event).removesuffix(NO_DELTA + b"\n\n")


def delta_frame(begin: bytes, delta: str, number: int) -> bytes:
    """The frame of one delta."""
    told = msgspec.json.encode(delta)
    return b'%b"delta":%b,"sequence_number":%d}\n\n' % (begin, told, number)

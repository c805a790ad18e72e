"""One line of the log for each call of an administrator, let in or not. Pure."""

import msgspec

LONGEST = 256


class _Said(msgspec.Struct, frozen=True):
    """What our answers have, of one kind or the other."""

    message: str = ""
    detail: str = ""


def audit_line(who: str, peer: str | None, call: str, status: int, answer: bytes) -> str:
    """Who, from where, what, and what came of it; never a key, nor what else a body may have.

    `who` is a key's name. The call is a method and a path, of which every character that is
    not printable is escaped.
    """
    try:
        said = msgspec.json.decode(answer, type=_Said)
    except msgspec.DecodeError:
        said = _Said()
    outcome = said.message or said.detail
    return (
        f"admin={who} from={peer or '-'} call={call[:LONGEST]!r} status={status} "
        f"said={outcome[:LONGEST]!r}"
    )

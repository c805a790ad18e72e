"""The audit log: one line for each call of an administrator, allowed or refused. Pure."""

import msgspec

LONGEST = 256


class _AnswerText(msgspec.Struct, frozen=True):
    """The text field of an answer: `message`, or `detail` of an error."""

    message: str = ""
    detail: str = ""


def audit_line(who: str, peer: str | None, call: str, status: int, answer: bytes) -> str:
    """Caller, address, call and outcome; never a key, nor anything else of a body.

    `who` is a key's name. The call is a method and a path, of which every character that is
    not printable is escaped.
    """
    try:
        text = msgspec.json.decode(answer, type=_AnswerText)
    except msgspec.DecodeError:
        text = _AnswerText()
    outcome = text.message or text.detail
    return (
        f"admin={who} from={peer or '-'} call={call[:LONGEST]!r} status={status} "
        f"said={outcome[:LONGEST]!r}"
    )

"""Signatures of thinking blocks. They prove nothing: a signature says that pdserve made it, and
carries the reasoning itself where the block does not show it. Pure.
"""

from base64 import b64decode, b64encode

SIGNATURE = "pdserve"
HIDDEN_PREFIX = f"{SIGNATURE}:"


def signature_of(thought: str, *, hidden: bool) -> str:
    """A signature of this reasoning; never empty, as clients drop thinking without one."""
    return HIDDEN_PREFIX + b64encode(thought.encode()).decode() if hidden else SIGNATURE


def hidden_thinking_of(signature: str) -> str:
    """The reasoning in a signature; empty if it has none, or is not one of pdserve's."""
    if not signature.startswith(HIDDEN_PREFIX):
        return ""
    try:
        return b64decode(signature.removeprefix(HIDDEN_PREFIX), validate=True).decode()
    except ValueError:
        return ""

"""Signatures of thoughts. There is nothing to prove to who brings one back: they say who made
them, and where the thought itself is not to be told, what it was. Pure.
"""

from base64 import b64decode, b64encode

OPEN = "pdserve"
SEALED = f"{OPEN}:"


def signature_of(thought: str, *, hidden: bool) -> str:
    """Never empty: clients take a thought without one for none."""
    return SEALED + b64encode(thought.encode()).decode() if hidden else OPEN


def thought_of(signature: str) -> str:
    """What was hidden; nothing in a signature of somebody else's."""
    if not signature.startswith(SEALED):
        return ""
    try:
        return b64decode(signature.removeprefix(SEALED), validate=True).decode()
    except ValueError:
        return ""

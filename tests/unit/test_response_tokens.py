"""Which tokens a response's text is made of."""

import pytest

from api.logprobs import ChatTokenLogprob
from api.responses.tokens import PendingTokens


def tokens(*spelt: str | bytes) -> list[ChatTokenLogprob]:
    ready = [one if isinstance(one, bytes) else one.encode() for one in spelt]
    return [ChatTokenLogprob(repr(one), -1.0, [*one], ()) for one in ready]


@pytest.mark.parametrize(
    ("given", "text", "told", "left"),
    [
        (["the", " sea"], "the sea", ["the", " sea"], []),
        (["the", " sea"], "the", ["the"], [" sea"]),
        (["</think>", "\n", "then"], "then", ["then"], []),
        (["</think>", " then"], "then", [" then"], []),
        ([b"\xf0\x9f", b"\xa6\x8a", "!"], "🦊", [b"\xf0\x9f", b"\xa6\x8a"], ["!"]),
        (["think", "n"], "n", ["n"], []),
        (["a"], "b", ["a"], []),
        ([], "b", [], []),
    ],
)
def test_tokens_are_told_beside_their_text(
    given: list[str | bytes], text: str, told: list[str | bytes], left: list[str | bytes]
) -> None:
    pending = PendingTokens(tokens(*given))
    assert pending.take_for(text) == tokens(*told)
    assert pending.tokens == tokens(*left)


def test_what_is_held_back_is_not_spelt_again_for_each_text() -> None:
    """A client may have its own stop string hold back as much as it likes."""
    spelt = list[int]()

    class Letters(tuple[int, ...]):
        def __bytes__(self) -> bytes:
            spelt.extend(self)
            return bytes([*self])

    pending = PendingTokens(
        [ChatTokenLogprob("a", -1.0, Letters(b"a"), ()) for _ in range(1000)]
    )
    assert [len(pending.take_for("a")) for _ in range(500)] == [1] * 500
    assert len(pending.tokens) == 500
    assert len(spelt) <= 2 * 500

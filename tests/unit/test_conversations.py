"""Which node has seen a conversation last: by its tokens, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from discovery.node import Node
from discovery.registration import Registration, Role
from proxy.routing.conversations import CacheLocation, Conversations, cache_at
from proxy.routing.prefix_hashes import STRIDE, PrefixHashes, hash_prefixes

PROMPT = tuple(range(3 * STRIDE + 5))
SAID = tuple(range(1000, 1000 + 2 * STRIDE))


def node(
    name: str, fingerprint: str | None = "f", at: str = "10.0.0.7:22001", size: int = 16
) -> Node:
    layout = {"block_size": size}
    kind = Registration(Role.DECODE, f"{name}:80", at, name, None, fingerprint, layout)
    return Node(kind, 0.0)


def place(name: str) -> CacheLocation:
    return CacheLocation(f"{name}:80", name)


def ask(prompt: tuple[int, ...], salt: str = "") -> PrefixHashes:
    return hash_prefixes(salt.encode(), prompt)


def remember(
    known: Conversations, prompt: tuple[int, ...], said: tuple[int, ...], at: Node
) -> None:
    known.remember(hash_prefixes(b"", (*prompt, *said)), len(prompt), at)


def test_the_next_turn_is_known() -> None:
    known = Conversations()
    remember(known, PROMPT, SAID, node("d"))
    assert known.find(ask((*PROMPT, *SAID, 7, 7))) == place("d")
    assert known.find(ask((*PROMPT, *SAID), salt="other")) is None
    assert known.find(ask(SAID)) is None
    assert known.find(ask(PROMPT[: STRIDE - 1])) is None


def test_an_answer_that_comes_back_in_other_words_is_known_by_its_prompt() -> None:
    known = Conversations()
    remember(known, PROMPT, SAID, node("d"))
    assert known.find(ask((*PROMPT, *range(5000, 5100)))) == place("d")


def test_the_latest_node_of_the_longest_part_counts() -> None:
    known = Conversations()
    remember(known, PROMPT, SAID, node("long"))
    remember(known, PROMPT, (), node("short"))
    assert known.find(ask((*PROMPT, *SAID))) == place("long")
    assert known.find(ask(PROMPT)) == place("short")
    remember(known, PROMPT, SAID, node("later"))
    assert known.find(ask((*PROMPT, *SAID))) == place("later")


def test_a_short_one_is_not_remembered() -> None:
    known = Conversations()
    remember(known, PROMPT[:10], SAID[: STRIDE - 11], node("d"))
    assert len(known) == 0


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    known = Conversations(most=10)
    for number in range(50):
        remember(known, (number, *PROMPT), SAID, node(str(number)))
        assert len(known) <= 10
    assert known.find(ask((49, *PROMPT, *SAID))) == place("49")
    assert known.find(ask((0, *PROMPT, *SAID))) is None


@given(
    prompt=st.lists(st.integers(0, 2**31 - 1), max_size=5 * STRIDE).map(tuple),
    said=st.lists(st.integers(0, 2**31 - 1), max_size=3 * STRIDE).map(tuple),
    more=st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple),
)
def test_any_turn_of_a_stride_or_more_is_known_to_its_next(
    prompt: tuple[int, ...], said: tuple[int, ...], more: tuple[int, ...]
) -> None:
    known = Conversations()
    remember(known, prompt, said, node("d"))
    found = known.find(ask((*prompt, *said, *more)))
    assert (found is not None) == (len(prompt) + len(said) >= STRIDE)


def test_only_a_node_of_the_same_model_is_asked() -> None:
    hint = cache_at(node("d"), node("p"))
    assert hint is not None
    assert (hint.engine_id, hint.host, hint.port, hint.fingerprint) == (
        *("d", "10.0.0.7", 22001),
        "f",
    )
    same = node("d")
    assert cache_at(same, same) is None
    assert cache_at(node("d", "other"), node("p")) is None
    assert cache_at(node("d", None), node("p", None)) is None
    assert cache_at(node("d", at="nowhere"), node("p")) is None
    assert cache_at(node("d", size=32), node("p")) is None

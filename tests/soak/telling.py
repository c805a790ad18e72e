"""What was said to a wish, however it was cut into events; compared with what is right."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tests.soak.clients import Told
from tests.soak.wishes import Wish

NEAR = 1e-3  # of log-probabilities, which are rounded differently in other batches
Json = Any


@dataclass(slots=True)
class Said:
    """All of one choice."""

    text: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)  # names and arguments
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    of_prompt: Json = None
    finish_reason: str | None = None
    stop_reason: Json = None

    def add(self, choice: Json) -> None:
        """One event's part of it, or the whole."""
        message = choice.get("delta") or choice.get("message") or {}
        self.text += choice.get("text") or message.get("content") or ""
        self.tokens += choice.get("token_ids") or []
        self.logprobs += _entries(choice.get("logprobs") or {})
        self.of_prompt = choice.get("prompt_logprobs") or self.of_prompt
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.stop_reason = choice.get("stop_reason") or self.stop_reason
        for place, call in enumerate(message.get("tool_calls") or []):
            name_and_arguments = self.calls.setdefault(call.get("index", place), ["", ""])
            name_and_arguments[0] += call["function"].get("name") or ""
            name_and_arguments[1] += call["function"].get("arguments") or ""


def all_said(chunks: Iterable[Json], n: int) -> dict[str, Json]:
    """Every choice, and the usage."""
    choices, usage = [Said() for _ in range(n)], None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            choices[choice["index"]].add(choice)
    counts = {name: one for name, one in (usage or {}).items() if name.endswith("_tokens")}
    return {"usage": counts, "choices": [asdict(one) for one in choices]}


@dataclass(slots=True)
class PeaceJudge:
    """Compares with what the same cluster said while nobody was hurt, refusals included."""

    wishes: Sequence[Wish]
    in_peace: Mapping[int, Told]
    excused: int = 0

    def failures(self, told: Mapping[int, Told]) -> list[str]:
        """Which calls failed that had not failed in peace, or not so."""
        pairs = [(one, told.get(one.number), self.in_peace[one.number]) for one in self.wishes]
        return [
            f"{wish.number}: {war.failure} instead of {peace.failure}"
            for wish, war, peace in pairs
            if war and not war.left and war.failure != peace.failure
        ]

    def differences(self, told: Mapping[int, Told]) -> list[str]:
        """Where an answer is another one; of who left, not how that one begins."""
        found = list[str]()
        for wish in self.wishes:
            war, peace = told.get(wish.number), self.in_peace[wish.number]
            if war is None or war.failure or peace.failure:
                continue
            one, other = all_said(peace.chunks, wish.n), all_said(war.chunks, wish.n)
            different = _not_begun(one, other) if war.left else _different(one, other)
            found += [f"{wish.number}{place}, {wish.fields}" for place in different[:1]]
        return found


def _entries(logprobs: Json) -> list[Json]:
    """One for each token: of a chat, or of a completion."""
    if "tokens" not in logprobs:
        return [
            {**one, "top_logprobs": _ranked((two["token"], two["logprob"]) for two in top)}
            for one in logprobs.get("content") or []
            for top in [one["top_logprobs"]]
        ]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    columns = [logprobs[name] or [None] * len(logprobs["tokens"]) for name in names]
    return [
        [token, score, _ranked((top or {}).items()), place]
        for token, score, top, place in zip(*columns, strict=True)
    ]


def _ranked(scores: Iterable[tuple[str, float]]) -> list[Json]:
    """Scores from the highest; tokens only where no other one can have their place."""
    ranked = sorted(scores, key=lambda pair: -pair[1])
    apart = [one - two >= NEAR for (_, one), (_, two) in pairwise(ranked)]
    around = zip([True, *apart], [*apart, False], strict=True) if ranked else ()
    alone = [above and below for above, below in around]
    return [
        [token if sure else None, score]
        for (token, score), sure in zip(ranked, alone, strict=True)
    ]


def _not_begun(whole: Json, begun: Json) -> list[str]:
    pairs = zip(whole["choices"], begun["choices"], strict=True)
    return [
        f".{number}: {one['tokens']} {one['text']!r} is {part['tokens']} {part['text']!r}"
        for number, (one, part) in enumerate(pairs)
        if one["tokens"][: len(part["tokens"])] != part["tokens"]
        or not one["text"].startswith(part["text"])
    ]


def _different(one: Json, other: Json, place: str = "") -> list[str]:
    """Where two values are not the same; numbers that are `NEAR` are."""
    if isinstance(one, float) and isinstance(other, float) and abs(one - other) < NEAR:
        return []
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [at for key in one for at in _different(one[key], other[key], f"{place}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [at for key, two in pairs for at in _different(*two, f"{place}.{key}")]
    return [] if one == other else [f"{place}: {one} is {other}"]

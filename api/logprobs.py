"""Log-probabilities as the text endpoints write them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from api.node_logprobs import TOKEN_ID, PromptLogprobs, json_logprob, prompt_logprobs_of
from engine.request import Logprob, Logprobs
from engine.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of an answer with its log-probabilities; it begins at text offset `offset`.

    `ranked`: the token itself, then the likeliest; empty for the first token of an echoed
    prompt, which nothing predicts.
    """

    token: int
    offset: int
    ranked: Logprobs = ()


class ChatTopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens; `bytes` are its own, even of an incomplete character."""

    token: str
    logprob: float
    bytes: Sequence[int]


class ChatTokenLogprob(ChatTopLogprob, frozen=True):
    """One token of a chat's answer. Two tokens of equal text are two entries."""

    top_logprobs: Sequence[ChatTopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """OpenAI's object for chats."""

    content: Sequence[ChatTokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """OpenAI's object for completions: four lists with one entry for each token."""

    text_offset: Sequence[int]
    token_logprobs: Sequence[float | None]
    tokens: Sequence[str]
    top_logprobs: Sequence[Mapping[str, float] | None]


@dataclass(frozen=True, slots=True)
class LogprobFormatter:
    """Writes log-probabilities, naming tokens by their text or (`by_id`) by `token_id:N`."""

    vocabulary: TokenBytes
    by_id: bool = False

    def chat(self, places: Sequence[ScoredToken]) -> ChatLogprobs | None:
        """For a chat; None where no token has log-probabilities."""
        content = [self._chat_token(*place.ranked) for place in places if place.ranked]
        return ChatLogprobs(content) if content else None

    def completion(self, places: Sequence[ScoredToken]) -> CompletionLogprobs | None:
        """For a completion; None where there are no tokens."""
        if not places:
            return None
        return CompletionLogprobs(
            text_offset=[place.offset for place in places],
            token_logprobs=[_first(place.ranked) for place in places],
            tokens=[self._name(place.token) for place in places],
            top_logprobs=[self._by_name(place.ranked) for place in places],
        )

    def prompt(self, ranked: Sequence[Logprobs]) -> PromptLogprobs:
        """vLLM's `prompt_logprobs`: by token id, with the text beside it."""
        return prompt_logprobs_of(ranked, self.vocabulary.text_of)

    def _name(self, token: int) -> str:
        return f"{TOKEN_ID}{token}" if self.by_id else self.vocabulary.text_of(token)

    def _chat_token(self, first: Logprob, *likeliest: Logprob) -> ChatTokenLogprob:
        tops = [ChatTopLogprob(*self._entry(one)) for one in likeliest]
        return ChatTokenLogprob(*self._entry(first), top_logprobs=tops)

    def _entry(self, one: Logprob) -> tuple[str, float, Sequence[int]]:
        spelt = self.vocabulary.bytes_of(one.token)
        return self._name(one.token), json_logprob(one.logprob), [*spelt]

    def _by_name(self, ranked: Logprobs) -> Mapping[str, float] | None:
        """The token and the likeliest. Of tokens with one text, the likeliest counts."""
        said = dict[str, float]()
        for one in ranked:
            name, value = self._name(one.token), json_logprob(one.logprob)
            said[name] = max(value, said.get(name, value))
        return said or None


def _first(ranked: Logprobs) -> float | None:
    return json_logprob(ranked[0].logprob) if ranked else None

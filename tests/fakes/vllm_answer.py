"""What vLLM's two endpoints answer, by a model without weights."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.request import Request, RequestId, Sampling
from tests.fakes.model import alone, likelihood
from tests.fakes.text import byte_level


@dataclass
class Answer:
    """To one call; `textual` at `/v1/completions`. Of several choices it is the first one.

    A form begins with the answer, as vLLM has it, whatever the prompt ends with.
    """

    cached: int
    tokens: tuple[int, ...]
    said: Mapping[str, Any]
    textual: bool
    handed: dict[str, Any] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a stop token ends it, or its form."""
        said = [token for token, _ in self.places]
        by_token = said[-1] in (self.said.get("stop_token_ids") or ())
        return by_token or tuple(said) == self.form

    @property
    def form(self) -> tuple[int, ...] | None:
        """What it has to be."""
        asked = self.said.get("structured_outputs")
        return byte_level().encode(asked["choice"][0]) if asked else None

    @property
    def places(self) -> list[tuple[int, Any]]:
        """Each token, and what is told of it."""
        known = {one: self.said[one] for one in ("seed", "temperature", "max_tokens")}
        stops = tuple(self.said.get("stop_token_ids") or ())
        sampling = Sampling(**known, stop_token_ids=stops, logprobs=self.said.get("logprobs"))
        asked = Request(RequestId("r"), self.tokens, sampling)
        said = alone(asked) if self.form is None else self.form[: sampling.max_tokens]
        return [
            (token, self._logprobs(likelihood(token, sampling, position)))
            for position, token in enumerate(said, len(self.tokens))
        ]

    def whole(self) -> dict[str, Any]:
        places = self.places
        choice = self._choice(places, last=True)
        if self.textual and "prompt_logprobs" in self.said:
            choice["prompt_logprobs"] = self._prompt_logprobs()
        usage = {"prompt_tokens": len(self.tokens), "completion_tokens": len(places)}
        details = {"cached_tokens": self.cached}
        return {
            **self._head(),
            "choices": [choice],
            "usage": {**usage, "prompt_tokens_details": details},
            "kv_transfer_params": self.handed,
        }

    async def frames(self, breaks_at: int | None = None) -> AsyncGenerator[bytes]:
        """All of it, or as many tokens as come before the node breaks off."""
        places = self.places
        for number, place in enumerate(places, 1):
            if breaks_at is not None and number > breaks_at:
                return
            choice = self._choice([place], last=number == len(places))
            yield _frame({**self._head(), "choices": [choice]})
        yield b"data: [DONE]\n\n"

    def _head(self) -> dict[str, Any]:
        if self.textual:
            return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        return {"request_id": "generate-tokens-1"}

    def _choice(self, places: list[tuple[int, Any]], *, last: bool) -> dict[str, Any]:
        tokens = [token for token, _ in places]
        stopped = last and self.stopped
        by_token = stopped and self.form is None
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": tokens,
            "finish_reason": ("stop" if stopped else "length") if last else None,
            "stop_reason": tokens[-1] if by_token else None,
            "logprobs": self._told([told for _, told in places]),
        }
        return {"text": "x", "prompt_token_ids": None, **choice} if self.textual else choice

    def _told(self, places: list[Any]) -> Any:  # noqa: ANN401  JSON
        if self.said.get("logprobs") is None:
            return None
        if not self.textual:
            return {"content": places}
        return {
            "text_offset": [0] * len(places),
            "tokens": [one["token"] for one in places],
            "token_logprobs": [one["logprob"] for one in places],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in [*one["top_logprobs"], one]}
                for one in places
            ],
        }

    def _logprobs(self, told: Any) -> Any:  # noqa: ANN401  JSON
        if not told:
            return None
        if self.textual:
            named = [
                {"token": f"token_id:{one.token}", "logprob": one.logprob} for one in told[0]
            ]
            return {**named[0], "top_logprobs": named[1:]}
        first, *tops = [
            {"token_id": one.token, "logprob": one.logprob, "rank": one.rank} for one in told[0]
        ]
        others = [one for one in tops if one["token_id"] != first["token_id"]]
        return {**first, "top_logprobs": [first, *others]}

    def _prompt_logprobs(self) -> list[Any]:
        told = [{str(one): {"logprob": -0.5, "rank": 1}} for one in self.tokens[1:]]
        return [None, *told]


def _frame(chunk: object) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

"""The models that a server offers, with their tokenizers, names and limits."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from api.defaults import OPENAI, Defaults
from api.errors import BadRequest, ModelNotFound, NoTokenizer, TooBusy
from api.generate import read_leg
from api.generator import WHOLE, Leg
from api.reasoning.formats import OFF, ReasoningParser
from api.text.tokenizing import TextCodec, token_ids_only
from api.tools.dialects.known import AUTO, ToolCallParser
from engine.grammars.checking import GrammarChecker
from engine.pooling.config import PoolingConfig
from engine.request import ModelKey
from kv_transfer.errors import MalformedTicket

MAX_LOGPROBS = 20  # as vLLM and OpenAI have it
NO_TOKENIZER = "There is no tokenizer here: use /inference/v1/generate"


class Models(Protocol):
    """The models of one server: one, or several."""

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> "ServedModel":
        """The model for the request `outer_id`; `text`: the request needs its tokenizer.

        `timeout_s` is the request's own; None: the server's. Raises ModelNotFound, BadRequest
        where a name is missing, NoTokenizer, or TooBusy while the tokenizer is on its way.
        """

    def listed(self) -> "Sequence[ServedModel]":
        """All models that can be asked for now."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of a server. `names[0]` is its own name; any of `names` is accepted.

    Without a `codec` there is no text here, and `no_text` says why; `pending`: the codec is
    still being loaded. `key` identifies one of a proxy's several models, and goes with each
    request. `max_model_len` is called for every request: a proxy learns it from its nodes, and
    it is None until then. If `pooling` is None, the nodes refuse what the model cannot pool.
    `defaults` are sampling parameters for requests that leave them out, `max_logprobs` is the
    most that may be asked for at each token (-1: any number). `grammars` checks structured
    outputs. `adapters` are the LoRA adapters that may be asked for in the model's place.
    """

    names: tuple[str, ...]
    codec: TextCodec | None
    max_model_len: Callable[[], int | None]
    vocab_size: int | None = None
    created: int = 0
    root: str | None = None
    pooling: PoolingConfig | None = None
    defaults: Defaults = OPENAI
    max_logprobs: int = MAX_LOGPROBS
    grammars: GrammarChecker = field(default_factory=GrammarChecker)
    key: ModelKey | None = None
    no_text: str = NO_TOKENIZER
    pending: bool = False
    tool_call_parser: ToolCallParser = AUTO
    reasoning_parser: ReasoningParser = OFF
    adapters: tuple[str, ...] = ()

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> "ServedModel":
        """See Models: the only model there is."""
        del outer_id, timeout_s
        self.resolve_name(asked)
        return self.ready(text=text)

    def listed(self) -> "Sequence[ServedModel]":
        """See Models."""
        return (self,)

    def ready(self, *, text: bool) -> "ServedModel":
        """This model; without a codec, a copy for token ids, unless `text` is needed."""
        codec = self.text if text else self.codec
        return self if codec is not None else replace(self, codec=token_ids_only())

    def resolve_name(self, model: str | None) -> str:
        """The name in the answer; a client that names no model gets the only one."""
        return self.adapter(model) or model or self.names[0]

    def adapter(self, model: str | None) -> str | None:
        """The adapter of this name; None: it is the model's. Raises ModelNotFound."""
        return named_adapter(model, self.names, self.adapters)

    @property
    def num_token_ids(self) -> int:
        """One more than the largest token id, of the model or else of the tokenizer."""
        return self.vocab_size or self.text.num_token_ids

    @property
    def text(self) -> TextCodec:
        """The codec; raises NoTokenizer if there is none, TooBusy if there is none yet."""
        if self.codec is None:
            raise TooBusy(self.no_text) if self.pending else NoTokenizer(self.no_text)
        return self.codec


def named_adapter(
    asked: str | None, names: Collection[str], adapters: Collection[str]
) -> str | None:
    """The adapter that a request names; None: it names the model, or nothing.

    Raises ModelNotFound for any other name: the model never answers in an adapter's place.
    """
    if not asked or asked in names:
        return None
    if asked not in adapters:
        raise ModelNotFound(f"The model `{asked}` does not exist.", "model")
    return asked


class LegReader(Protocol):
    """Tells which leg (prefill, decode, whole) a choice of a text request is."""

    def __call__(self, outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
        """`params` are the body's `kv_transfer_params`, `index` is the choice's.

        Raises BadRequest.
        """


def read_whole_request(outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
    """The proxy's LegReader: every request is whole, whatever `kv_transfer_params` say."""
    del outer_id, params, index
    return WHOLE


def read_leg_params(outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
    """A node's LegReader: the leg that `kv_transfer_params` describe, for the first choice.

    They name one hand-over, so the other choices run here from prompt to end. Clients of text
    read until the last chunk, so such a leg is never kept open.
    """
    del outer_id
    if index:
        return WHOLE
    try:
        return msgspec.structs.replace(read_leg(params), keep_open=False, elsewhere=False)
    except MalformedTicket as error:
        raise BadRequest(str(error), "kv_transfer_params") from error

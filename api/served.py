"""What a door serves under which names, and what its host adds to a request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from api.defaults import OPENAI, Defaults
from api.errors import BadRequest, NoText, TooBusy, UnknownModel
from api.generate import read_leg
from api.generator import WHOLE, Leg
from api.reasoning.forms import OFF, ReasoningParser
from api.text.tokenizing import TextCodec, silent
from api.tools.dialects.known import AUTO, ToolCallParser
from engine.grammars.checking import GrammarChecker
from engine.pooling.config import PoolingConfig
from engine.request import Model
from kv_transfer.errors import MalformedTicket

MAX_LOGPROBS = 20  # as vLLM and OpenAI have it
NO_TOKENIZER = "There is no tokenizer here: use /inference/v1/generate"


class Models(Protocol):
    """What a door serves: one model, or several."""

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> "Served":
        """The model that a request named `outer_id` goes to; `text`: it cannot do without.

        It has so much time to be answered in; None: as it is for all. Raises UnknownModel,
        BadRequest where a name is missing, and where there is no text NoText, or TooBusy if
        there will be soon.
        """

    def listed(self) -> "Sequence[Served]":
        """All that can be asked for now."""


@dataclass(frozen=True, slots=True)
class Served:
    """One model at one door. `names[0]` is its own name, any of `names` is accepted.

    Without a `codec` there is no text here, and `no_text` says why; `pending`: it is on its
    way. `key` tells several models of one door apart, and goes with each request.
    `max_model_len` is asked anew for every request:
    a proxy learns it from its nodes, and it is None until then. Who does not know what the
    model pools leaves it to the nodes to refuse. `defaults` are of requests that say nothing,
    `max_logprobs` is the most that may be asked for beside each token (-1: any number).
    `grammars` are checked before anybody is asked to keep to one. `tool_call_parser` reads
    calls out of answers, `reasoning_parser` reasoning.
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
    key: Model | None = None
    no_text: str = NO_TOKENIZER
    pending: bool = False
    tool_call_parser: ToolCallParser = AUTO
    reasoning_parser: ReasoningParser = OFF

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> "Served":
        """See Models: the only one there is."""
        del outer_id, timeout_s
        self.name(asked)
        return self.ready(text=text)

    def listed(self) -> "Sequence[Served]":
        """See Models."""
        return (self,)

    def ready(self, *, text: bool) -> "Served":
        """Itself; without a codec as one that answers in token ids, or the reason it cannot."""
        codec = self.text if text else self.codec
        return self if codec is not None else replace(self, codec=silent())

    def name(self, asked: str | None) -> str:
        """The name to answer under; a client that names no model gets the one there is."""
        if not asked:
            return self.names[0]
        if asked not in self.names:
            raise UnknownModel(f"The model `{asked}` does not exist.", "model")
        return asked

    @property
    def size(self) -> int:
        """One more than the largest token id, of the model or else of the tokenizer."""
        return self.vocab_size or self.text.size

    @property
    def text(self) -> TextCodec:
        """The codec; raises NoText where there is none, TooBusy where there is none yet."""
        if self.codec is None:
            raise TooBusy(self.no_text) if self.pending else NoText(self.no_text)
        return self.codec


class ReadLeg(Protocol):
    """How a door finds out which leg a choice of a text request is; raises BadRequest."""

    def __call__(self, outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
        """`params` are the body's `kv_transfer_params`, `index` is the choice's."""


def no_legs(outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
    """The proxy's: what it serves is whole, whatever a client says of legs."""
    del outer_id, params, index
    return WHOLE


def legs_of_params(outer_id: str, params: Mapping[str, object] | None, index: int) -> Leg:
    """A node's: one leg as `kv_transfer_params` say it; they can stand for one choice only.

    Who reads text waits for the last chunk, so a leg is never kept open.
    """
    del outer_id
    try:
        leg = msgspec.structs.replace(read_leg(params), keep_open=False, elsewhere=False)
    except MalformedTicket as error:
        raise BadRequest(str(error), "kv_transfer_params") from error
    if index and leg != WHOLE:
        raise BadRequest("one prompt and n=1 are needed", "kv_transfer_params")
    return leg

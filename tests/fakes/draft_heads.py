"""Checkpoints with a draft head, and what transformers' modules say that it drafts."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.checkpoints.checkpoint import WEIGHTS
from engine.scheduling.drafting import Drafter
from engine.scheduling.sequence import Sequence as Seq
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import edit_config, make_checkpoint

LAYERS = 2
ADDED = re.compile(r"\.(o_proj|down_proj)\b")  # what layers add to the residual stream
SPREAD = 0.2


def make_head_checkpoint(
    folder: Path, family: str = "deepseek_v3", *, right: bool = False, experts: bool = True
) -> Path:
    """A model of LAYERS layers, and one more layer that is a draft head.

    One that is `right` drafts what the model says: all layers add nothing, so that a token
    depends on the last one only. Another head knows nothing. `folder` also gets `whole`, which
    is a model of all these layers, for `Reference`. Without `experts` no layer has any.
    """
    dense: dict[str, Any] = {} if experts else {"first_k_dense_replace": LAYERS + 1}
    whole = make_checkpoint(folder / "whole", family, num_hidden_layers=LAYERS + 1, **dense)
    made = make_checkpoint(folder / "model", family, num_hidden_layers=LAYERS, **dense)
    weights = load_file(whole / WEIGHTS)
    for name, weight in weights.items():
        if right and ADDED.search(name):
            weight.zero_()
    save_file(weights, whole / WEIGHTS, metadata={"format": "pt"})
    weights |= _head(weights, right=right)
    save_file(weights, made / WEIGHTS, metadata={"format": "pt"})
    edit_config(made, {"num_nextn_predict_layers": 1})
    return made


def headed(most: int = 4, **more: int) -> dict[str, str]:
    """The engine's settings for drafts of the model's head."""
    said = {"method": "mtp", "num_speculative_tokens": most, **more}
    return {"speculative_config": json.dumps(said)}


def _head(weights: dict[str, Tensor], *, right: bool) -> dict[str, Tensor]:
    """What a head has beside its layer; published ones have copies of both embeddings."""
    words, output = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
    at, generator = f"model.layers.{LAYERS}.", torch.Generator().manual_seed(77)
    hidden = words.shape[1]

    def drawn(*shape: int) -> Tensor:
        return torch.empty(shape).normal_(0, SPREAD, generator=generator)

    made = {
        "eh_proj": drawn(hidden, 2 * hidden),
        "enorm": 1 + drawn(hidden),
        "hnorm": 1 + drawn(hidden),
        "shared_head.norm": 1 + drawn(hidden),
        "shared_head.head": output.clone(),
        "embed_tokens": words.clone(),
    }
    if right:
        only_the_token = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1)
        made |= {"eh_proj": only_the_token, "enorm": torch.ones(hidden)}
        made["shared_head.norm"] = weights["model.norm.weight"].clone()
    return {f"{at}{name}.weight": weight for name, weight in made.items()}


class ReferenceHead(Protocol):
    """A model and its head by transformers' modules, each time from the first token on."""

    def drafts(self, tokens: Sequence[int], most: int) -> list[int]:
        """What the head drafts greedily behind `tokens`, of which the last was just said."""


def in_turn(
    read: Sequence[int],
    states: Tensor,
    most: int,
    run: Callable[[Sequence[int], Tensor], Tensor],
    likeliest: Callable[[Tensor], int],
) -> list[int]:
    """Drafts behind the tokens that are `read` beside `states`, each from the one before."""
    drafted = list[int]()
    while True:
        made = run([*read, *drafted], states)
        drafted.append(likeliest(made[-1:]))
        if len(drafted) == most:
            return drafted
        states = torch.cat((states, made[-1:]))


@dataclass
class Reference:
    """See ReferenceHead, for heads that `make_head_checkpoint` made."""

    whole: Any
    layer: nn.Module
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, made: Path) -> "Reference":
        """Of a folder that `make_head_checkpoint` made."""
        import transformers  # slow to load

        whole = transformers.AutoModelForCausalLM.from_pretrained(
            made.parent / "whole", dtype=torch.float32, attn_implementation="eager"
        )
        layer = whole.model.layers[LAYERS]
        whole.model.layers = whole.model.layers[:LAYERS]
        whole.model.config.num_hidden_layers = LAYERS
        return cls(whole, layer, load_file(made / WEIGHTS))

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], most: int) -> list[int]:
        """See ReferenceHead."""
        states = self.whole.model(torch.tensor([tokens[:-1]]), use_cache=False)[0][0]
        return in_turn(tokens[1:], states, most, self._pass, self._likeliest)

    def _likeliest(self, state: Tensor) -> int:
        words = self._weight("shared_head.head")
        return int(self._norm("shared_head.norm", state).matmul(words.T).argmax())

    def _pass(self, read: Sequence[int], states: Tensor) -> Tensor:
        embedded = nn.functional.embedding(torch.tensor(read), self._weight("embed_tokens"))
        both = self._norm("enorm", embedded), self._norm("hnorm", states)
        hidden = torch.cat(both, 1).matmul(self._weight("eh_proj").T)[None]
        places = torch.arange(len(read))[None]
        later = torch.full((len(read),) * 2, float("-inf")).triu(1)[None, None]
        turned = self.whole.model.rotary_emb(hidden, position_ids=places)
        made = self.layer(
            hidden, attention_mask=later, position_ids=places, position_embeddings=turned
        )
        hidden = made if isinstance(made, Tensor) else made[0]
        return hidden[0]

    def _norm(self, name: str, rows: Tensor) -> Tensor:
        eps = self.whole.config.rms_norm_eps
        return nn.functional.rms_norm(rows, rows.shape[1:], self._weight(name), eps)

    def _weight(self, name: str) -> Tensor:
        return self.weights[f"model.layers.{LAYERS}.{name}.weight"]


@dataclass
class Compared:
    """A drafter whose greedy drafts have to be the reference's."""

    drafter: Drafter
    reference: ReferenceHead
    drafts: int = 0

    @classmethod
    def watch(cls, engine: TorchEngine, reference: ReferenceHead) -> "Compared":
        """Of an engine with a head, from now on."""
        assert engine.scheduler.drafter is not None
        engine.scheduler.drafter = judge = cls(engine.scheduler.drafter, reference)
        return judge

    def wanted(self, seq: Seq, most: int) -> int:
        return self.drafter.wanted(seq, most)

    def rests(self, seqs: Iterable[Seq]) -> bool:
        return self.drafter.rests(seqs)

    def draft(self, granted: Mapping[Seq, int]) -> Mapping[Seq, Sequence[int]]:
        made = self.drafter.draft(granted)
        assert {seq: len(tokens) for seq, tokens in made.items()} == dict(granted)
        for seq, tokens in made.items():
            assert list(tokens) == self.reference.drafts(seq.tokens, len(tokens))
            self.drafts += 1
        return made

    def record_acceptance(self, seq: Seq, drafted: int, accepted: int) -> None:
        self.drafter.record_acceptance(seq, drafted, accepted)

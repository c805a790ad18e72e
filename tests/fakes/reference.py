"""What transformers makes of a checkpoint: the judge of our own decoder."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.fakes.checkpoints import GENERATES, SEEING, SEEING_AUTO
from tests.fakes.taught import teach_transformers


class Reference:
    """One whole forward pass at a time: no cache, no blocks, no batch."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        import transformers  # slow to load

        teach_transformers()
        kind = json.loads((folder / "config.json").read_text())["model_type"]
        auto = getattr(transformers, SEEING_AUTO if kind in SEEING else GENERATES)
        model = auto.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
        self.model = model.eval()

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[tokens, vocabulary] float32: what may follow each of them."""
        logits: Tensor = self.model(torch.tensor([tokens])).logits[0]
        return logits.float()

    def greedy(self, prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
        """What it would have said in place of each token of `answer`.

        It is given the answer up to there, so equal lists mean equal greedy generation.
        """
        said: list[int] = self.logits([*prompt, *answer]).argmax(1).tolist()
        return said[len(prompt) - 1 : -1]

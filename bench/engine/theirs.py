"""transformers' continuous batching, measured on the same checkpoint.

All sequences of a decode run have the same prompt, whose KV transformers computes once and
shares. Only its steps are measured, and sharing can only make them faster.
"""

import logging
import statistics
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
)
from transformers.utils.logging import disable_progress_bar

PAGE = 256
BATCH_TOKENS = 1024
PATIENCE_S = 300


@dataclass(slots=True)
class TransformersEngine:
    """A manager of transformers' continuous batching, for the largest batch and context."""

    manager: Any
    vocabulary: int

    @classmethod
    @contextmanager
    def load(cls, folder: str, sequences: int, tokens: int) -> Iterator["TransformersEngine"]:
        """Load a model as transformers' documentation does, in bfloat16, with SDPA."""
        disable_progress_bar()  # type: ignore[no-untyped-call]
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
        with cls.over(model, sequences, tokens) as theirs:
            yield theirs

    @classmethod
    @contextmanager
    def over(
        cls,
        model: Any,  # noqa: ANN401  a model of theirs
        sequences: int,
        tokens: int,
        most: int = BATCH_TOKENS,
    ) -> Iterator["TransformersEngine"]:
        """A manager with pages for `sequences` of `tokens` each; `most` tokens in one batch."""
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        greedy = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=False, eos_token_id=-1, max_new_tokens=1
        )
        pages = sequences * (tokens // PAGE + 2)
        batching = ContinuousBatchingConfig(num_blocks=pages, max_batch_tokens=most)
        with model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=batching, timeout=5
        ) as manager:
            yield cls(manager, model.config.vocab_size)

    def prompt_s(self, length: int, runs: int) -> float:
        """Median seconds from submission to the first token, of prompts it has not seen."""
        times = list[float]()
        for _ in range(runs):
            prompt = torch.randint(1, self.vocabulary, (length,)).tolist()
            (result,) = self._run([prompt], 1)
            times.append(result.timestamps[0] - result.created_time)
        return statistics.median(times)

    def step_s(self, batch: int, context: int, steps: int) -> float:
        """Mean seconds of a step, while all sequences decode."""
        prompt = torch.randint(1, self.vocabulary, (context,)).tolist()
        self._run([prompt], 1)
        results = self._run([prompt] * batch, steps + batch)
        begin = max(one.timestamps[0] for one in results)
        end = min(one.timestamps[-1] for one in results)
        within: list[float] = [at for at in results[0].timestamps if begin <= at <= end]
        return (within[-1] - within[0]) / (len(within) - 1)

    def _run(self, prompts: list[list[int]], tokens: int) -> list[Any]:
        names = [uuid.uuid4().hex for _ in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            self.manager.add_request(
                prompt, request_id=name, max_new_tokens=tokens, record_timestamps=True
            )
        results = [self.manager.get_result(timeout=PATIENCE_S) for _ in names]
        failed = [one for one in results if one is None or one.error]
        assert not failed, f"transformers did not answer: {failed[0]}"
        return results


def random_model(config: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Any:  # noqa: ANN401  theirs
    """A model with this config.json and transformers' random initialization."""
    known = AutoConfig.for_model(**config)
    auto: Any = AutoModelForCausalLM
    with device:
        return auto.from_config(known, dtype=dtype, attn_implementation="sdpa").eval()

"""`python -m bench.sampler`: what each sampling setting costs a step.

Logits are random, with a spread as in language models. Each measurement is one step of some
sequences with prompts of some length, on one thread.
"""

import statistics
import sys
import time
from collections.abc import Iterator

import torch

from engine.kernels.cpu.native import open_kernels
from engine.request import Request, RequestId, Sampling
from engine.sampling.sampler import Sampler, SamplerRow
from engine.scheduling.sequence import Sequence

VOCABULARIES = (8_000, 151_936)
ROWS = 8
PROMPT = 2_000
SPREAD = 4.0
RUNS = 15
MS = 1e3

GREEDY = Sampling(temperature=0)
ASKED: dict[str, Sampling] = {
    "greedy": GREEDY,
    "temperature": Sampling(),
    "top_k 50": Sampling(top_k=50),
    "top_p 0.9": Sampling(top_p=0.9),
    "min_p 0.05": Sampling(min_p=0.05),
    "penalties": Sampling(temperature=0, repetition_penalty=1.1, presence_penalty=0.5),
    "logit_bias, 300 tokens": Sampling(
        temperature=0, logit_bias=tuple((token, 1.0) for token in range(300))
    ),
    "allowed_token_ids, 300": Sampling(temperature=0, allowed_token_ids=tuple(range(300))),
    "bad_words, 300 of two": Sampling(
        temperature=0, bad_words=tuple((token, token + 1) for token in range(300))
    ),
    "logprobs 5": Sampling(temperature=0, logprobs=5),
}


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    for vocabulary in VOCABULARIES:
        for name, sampling in ASKED.items():
            took = statistics.median(step_s(sampling, vocabulary))
            line = f"vocabulary {vocabulary:7,}, {ROWS} rows, {name:23}: {took * MS:7.2f} ms"
            sys.stdout.write(line + "\n")


@torch.inference_mode()
def step_s(sampling: Sampling, vocabulary: int) -> Iterator[float]:
    """Seconds of consecutive steps; the first, which reads prompts, is left out."""
    logits = SPREAD * torch.randn((ROWS, vocabulary))
    sampler, prompt = Sampler(vocabulary, native=open_kernels("auto")), tuple(range(PROMPT))
    seqs = [Sequence(Request(RequestId(str(row)), prompt, sampling)) for row in range(ROWS)]
    for run in range(RUNS + 1):
        asked = logits.clone()
        since = time.perf_counter()
        tokens = sampler.sample(asked, [SamplerRow(seq) for seq in seqs]).tokens
        if run:
            yield time.perf_counter() - since
        for seq, token in zip(seqs, tokens, strict=True):
            seq.tokens.append(token)


if __name__ == "__main__":
    main()

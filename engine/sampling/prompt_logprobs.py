"""Log-probabilities of prompt tokens (`prompt_logprobs`), chunk by chunk of the prefill."""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from engine.api import Scored
from engine.sampling.logprobs import logprobs_of, top_logprobs
from engine.scheduling.chunk import Chunk

ROWS_AT_ONCE = 64  # with a large vocabulary, a whole chunk's logits would take gigabytes


def record_prompt_logprobs(
    chunks: Iterable[Chunk], hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> Iterator[Scored]:
    """Append the chunks' log-probabilities to `seq.prompt_logprobs`; yield complete prompts.

    `hidden` [tokens, hidden] has a row for each token of `chunks`, in order. A preempted
    prompt keeps the scores that it has, and tokens that are run again are not scored again.
    """
    begin = 0
    for chunk in chunks:
        seq, end = chunk.seq, chunk.start + chunk.length
        if seq.prompt_logprobs is not None:
            prompt, most = seq.request.prompt, seq.request.sampling.prompt_logprobs or 0
            last = min(end, len(prompt) - 1)
            for start in range(len(seq.prompt_logprobs), last, ROWS_AT_ONCE):
                stop = min(start + ROWS_AT_ONCE, last)
                rows = hidden[begin + start - chunk.start : begin + stop - chunk.start]
                logprobs = logprobs_of(logits_of(rows))
                seq.prompt_logprobs += top_logprobs(
                    logprobs, prompt[start + 1 : stop + 1], most
                )
            if end >= len(prompt) - 1:
                yield Scored(seq.request_id, tuple(seq.prompt_logprobs))
                seq.prompt_logprobs = None
        begin += chunk.size

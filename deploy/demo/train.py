"""Trains the demo model from scratch: `python -m deploy.demo.train`, minutes on two cores.

The same seed and thread count on the same machine give the same weights.
"""

import argparse
import json
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from deploy.demo.chats import ChatWriter
from deploy.demo.examine import MODEL, examine
from deploy.demo.tokenizer import (
    BEGIN,
    END,
    LONGEST,
    PAD,
    VOCABULARY,
    encode_chat,
    save_tokenizer,
    token_id,
    train_tokenizer,
)
from deploy.demo.topics import read_material

TOKENIZER_CHATS = 6000
POOL_CHATS = 512
NOT_LEARNED = -100
log = logging.getLogger(__name__)

Sample = tuple[list[int], list[bool]]
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """Training settings; a batch has at most `batch_tokens`, padding included.

    One thread, because several wait for each other when a core has other work to do.
    """

    steps: int = 1000
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    warmup_steps: int = 100
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    log_every: int = 100
    seed: int = 7
    threads: int = 1


def main() -> None:
    """Train tokenizer and model, write the checkpoint, examine it."""
    plan, folder = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    torch.use_deterministic_algorithms(mode=True)
    material = read_material()
    chats = ChatWriter(material, Random(plan.seed)).chats()
    first = islice(chats, TOKENIZER_CHATS)
    tokenizer = train_tokenizer(message["content"] for chat in first for message in chat)
    model = _model(tokenizer)
    log.info("%d parameters, %s", model.num_parameters(), plan)
    train(model, batches((encode_chat(tokenizer, chat) for chat in chats), plan), plan)
    model.bfloat16().save_pretrained(folder)
    ask_for_likeliest(folder / "generation_config.json")
    save_tokenizer(tokenizer, folder)
    examine(folder, material)


def ask_for_likeliest(file: Path) -> None:
    """Make greedy decoding the default: a sampled answer may diverge from the one that was
    taught.

    transformers would not save a temperature of zero, but reads it.
    """
    settings = json.loads(file.read_text()) | {"do_sample": False, "temperature": 0.0}
    file.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def train(model: LlamaForCausalLM, data: Iterable[Batch], plan: Plan) -> None:
    """AdamW with warm-up and a cosine to zero; logs the mean loss since the last line."""
    optimizer = torch.optim.AdamW(
        model.parameters(), plan.learning_rate, (0.9, 0.95), weight_decay=plan.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _pace(step, plan))
    start, losses = time.monotonic(), list[float]()
    for step, (tokens, labels) in enumerate(islice(data, plan.steps), start=1):
        with torch.autocast("cpu", torch.bfloat16):  # half the time if the CPU supports it
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        if step % plan.log_every == 0 or step == plan.steps:
            mean, seconds = sum(losses) / len(losses), time.monotonic() - start
            log.info("step %5d  loss %.4f  %4.0f s", step, mean, seconds)
            losses.clear()


def batches(samples: Iterator[Sample], plan: Plan) -> Iterator[Batch]:
    """Samples of similar length together, in an order that does not follow the length."""
    order = Random(plan.seed)
    while True:
        pool = sorted(islice(samples, POOL_CHATS), key=lambda sample: len(sample[0]))
        groups = list(_groups(pool, plan.batch_tokens))
        order.shuffle(groups)
        for group in groups:
            yield _batch(group)


def _groups(pool: Iterable[Sample], most_tokens: int) -> Iterator[list[Sample]]:
    """Cut a pool, shortest sample first, into groups that fit a batch once padded."""
    group = list[Sample]()
    for sample in pool:
        if group and len(sample[0]) * (len(group) + 1) > most_tokens:
            yield group
            group = []
        group.append(sample)
    yield group


def _batch(group: list[Sample]) -> Batch:
    """Padded at the end, where causal attention does not see it."""
    longest = max(len(ids) for ids, _ in group)
    tokens = torch.zeros(len(group), longest, dtype=torch.long)
    labels = torch.full_like(tokens, NOT_LEARNED)
    for row, (ids, learned) in enumerate(group):
        tokens[row, : len(ids)] = torch.tensor(ids)
        wanted = [
            t if is_learned else NOT_LEARNED for t, is_learned in zip(ids, learned, strict=True)
        ]
        labels[row, : len(ids)] = torch.tensor(wanted)
    return tokens, labels


def _pace(step: int, plan: Plan) -> float:
    warm = min(1.0, (step + 1) / plan.warmup_steps)
    return warm * 0.5 * (1 + math.cos(math.pi * step / plan.steps))


def _model(tokenizer: Tokenizer) -> LlamaForCausalLM:
    """As many parameters as fit the repository; the seed determines the weights."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=LONGEST,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=token_id(tokenizer, BEGIN),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )
    return LlamaForCausalLM(config)


def _arguments() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser(prog="python -m deploy.demo.train", description=__doc__)
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--out", type=Path, default=MODEL, help="folder of the checkpoint")
    given = parser.parse_args()
    return Plan(steps=given.steps), given.out


if __name__ == "__main__":
    main()

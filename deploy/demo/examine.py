"""Asks the trained demo model questions it was not trained on: `python -m deploy.demo.examine`.

Prints a few questions with their greedy answers, and how many held-out phrasings got the right
one.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from deploy.demo.chats import Message
from deploy.demo.topics import Material, read_material
from engine.loading import load_engine
from engine.request import FinishReason, Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

MODEL = Path(__file__).parent / "model"
MOST_TOKENS = 200
KV_BYTES = 64 * 2**20
SAMPLES = (
    "What is a prefill node?",
    "Why split prefill and decode?",
    "What happens when a node dies?",
    "How do I start pdserve?",
    "What is the capital of France?",
)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer and how it ended."""

    tokens: tuple[int, ...]
    text: str
    finish: FinishReason


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint under examination: our engine in float32, one question at a time."""

    engine: TorchEngine
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def load(cls, folder: Path) -> "Candidate":
        """Load the folder as any other checkpoint."""
        wanted = EngineConfig(
            model=str(folder), dtype="float32", kv_cache_memory_bytes=KV_BYTES, threads=1
        )
        return cls(load_engine(wanted), AutoTokenizer.from_pretrained(folder))

    def prompt(self, chat: Sequence[Message]) -> tuple[int, ...]:
        """The chat as token ids, up to where the answer begins."""
        text = self.tokenizer.apply_chat_template(
            list(chat), tokenize=False, add_generation_prompt=True
        )
        return tuple(self.tokenizer.encode(str(text), add_special_tokens=False))

    def answer(self, chat: Sequence[Message]) -> Answer:
        """Let the engine answer greedily until it stops by itself, or reaches the limit."""
        sampling = Sampling(max_tokens=MOST_TOKENS, temperature=0)
        self.engine.generate(Request(RequestId("question"), self.prompt(chat), sampling))
        tokens = list[int]()
        finish: FinishReason | None = None
        while finish is None:
            self.engine.schedule()
            for sampled in self.engine.step().sampled:
                tokens += sampled.tokens
                finish = sampled.finish
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(tuple(tokens), str(text), finish)


def asked(question: str) -> list[Message]:
    """A chat with one question."""
    return [{"role": "user", "content": question}]


def examine(folder: Path, material: Material) -> None:
    """Log the answers to SAMPLES and the result for questions held out of training."""
    candidate = Candidate.load(folder)
    for question in SAMPLES:
        log.info("Q: %s\nA: %s", question, candidate.answer(asked(question)).text)
    right = total = 0
    for topic in (*material.topics, material.off_topic):
        for question in topic.held:
            given = candidate.answer(asked(question)).text
            right, total = right + (given == topic.answer), total + 1
            if given != topic.answer:
                log.info("not as taught: %s -> %s", question, given)
    log.info("held-out phrasings with the answer that was taught: %d of %d", right, total)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    examine(MODEL, read_material())

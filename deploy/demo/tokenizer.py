"""The demo model's tokenizer: byte-level BPE, so that any UTF-8 text has tokens.

A chat is `<|begin|>`, then for each message a token for its role, its text and `<|end|>`.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from deploy.demo.chats import Message

VOCABULARY = 2048
LONGEST = 2048
BEGIN, END, PAD = SPECIAL = ("<|begin|>", "<|end|>", "<|pad|>")
ROLES = {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
TEMPLATE = Path(__file__).parent / "data" / "chat_template.jinja"
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BEGIN,
    "eos_token": END,
    "pad_token": PAD,
    "model_max_length": LONGEST,
    "clean_up_tokenization_spaces": False,
}


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from these texts; plain text is encoded with `<|begin|>` before it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *ROLES.values()],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    begin = (BEGIN, token_id(bpe, BEGIN))
    bpe.post_processor = processors.TemplateProcessing(f"{BEGIN} $A", special_tokens=[begin])
    return bpe


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the three files that AutoTokenizer reads."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / TEMPLATE.name).write_text(TEMPLATE.read_text())


def encode_chat(tokenizer: Tokenizer, chat: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """Token ids as the chat template produces them, and which of them are to be learned."""
    ids, learned = [token_id(tokenizer, BEGIN)], [False]
    end = token_id(tokenizer, END)
    for message in chat:
        text = tokenizer.encode(message["content"], add_special_tokens=False).ids
        ids += [token_id(tokenizer, ROLES[message["role"]]), *text, end]
        learned += [False, *[message["role"] == "assistant"] * (len(text) + 1)]
    return ids, learned


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must exist."""
    found = tokenizer.token_to_id(token)
    assert found is not None, token
    return found

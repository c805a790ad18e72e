"""The bundled demo model is small, loads like any other, and answers as it was taught."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from deploy.demo.chats import Message
from deploy.demo.examine import MODEL, Candidate, asked
from deploy.demo.tokenizer import encode_chat
from deploy.demo.topics import Topic, read_material
from engine.request import FinishReason

MOST_BYTES = 8_000_000
MOST_TOKENS = 120
CHAT: list[Message] = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is a lease?"},
    {"role": "assistant", "content": "A promise."},
    {"role": "user", "content": "Tell me more."},
]
ANY_TEXT = ["plain words", "naïve café", "你好世界", "🙂 👩‍👩‍👧", "a\n\tb  c", ""]


@pytest.fixture(scope="module")
def demo() -> Candidate:
    return Candidate.load(MODEL)


def test_the_folder_is_small() -> None:
    assert sum(file.stat().st_size for file in MODEL.rglob("*")) <= MOST_BYTES


def test_it_says_what_a_prefill_node_is_and_stops(demo: Candidate) -> None:
    answer = demo.answer(asked("What is a prefill node?"))
    assert answer.finish is FinishReason.STOP
    assert len(answer.tokens) < MOST_TOKENS
    assert answer.tokens[-1] == demo.tokenizer.eos_token_id
    assert "prompt" in answer.text
    assert "KV cache" in answer.text


def test_it_says_so_when_it_does_not_know(demo: Candidate) -> None:
    answer = demo.answer(asked("What is the capital of Finland?"))
    assert answer.finish is FinishReason.STOP
    assert answer.text.startswith("I do not know.")


def test_transformers_would_say_the_same(demo: Candidate) -> None:
    question = asked("What happens when a node dies?")
    prompt, answer = demo.prompt(question), demo.answer(question)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer.tokens])).logits[0]
    assert tuple(logits[len(prompt) - 1 : -1].argmax(-1).tolist()) == answer.tokens


def test_the_end_token_is_known_to_engine_and_tokenizer(demo: Candidate) -> None:
    assert demo.engine.info.eos_token_ids == (demo.tokenizer.eos_token_id,)


@pytest.mark.parametrize("text", ANY_TEXT)
def test_any_text_survives_the_tokenizer(demo: Candidate, text: str) -> None:
    ids = demo.tokenizer.encode(text)
    assert ids[0] == demo.tokenizer.bos_token_id
    assert demo.tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_chat_is_rendered_with_roles_and_an_open_answer(demo: Candidate) -> None:
    assert demo.tokenizer.is_fast
    rendered = demo.tokenizer.decode(list(demo.prompt(CHAT)))
    assert rendered == (
        "<|begin|><|system|>Answer briefly.<|end|><|user|>What is a lease?<|end|>"
        "<|assistant|>A promise.<|end|><|user|>Tell me more.<|end|><|assistant|>"
    )


def test_text_in_parts_is_rendered_as_one(demo: Candidate) -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "a lease? "}]
    chat: Any = [{"role": "user", "content": parts}]  # wider than what transformers declares
    rendered = demo.tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|begin|><|user|>What is a lease?<|end|>"


def test_chats_are_trained_on_as_they_are_served(demo: Candidate) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ids, learned = encode_chat(tokenizer, CHAT)
    opening = encode_chat(tokenizer, [{"role": "assistant", "content": ""}])[0][1]
    assert (*ids, opening) == demo.prompt(CHAT)
    taught = [token for token, wanted in zip(ids, learned, strict=True) if wanted]
    assert demo.tokenizer.decode(taught) == "A promise.<|end|>"


def topics() -> list[Topic]:
    material = read_material()
    return [*material.topics, material.off_topic]


def test_held_out_questions_are_never_taught() -> None:
    assert all(set(topic.held).isdisjoint(topic.ask) for topic in topics())


def test_every_question_has_one_answer() -> None:
    questions = [question for topic in topics() for question in (*topic.ask, *topic.terms)]
    assert sorted(questions) == sorted(set(questions))

"""A text reaches a chat template that reads only lists of parts, as of text and images."""

import pytest

from api.errors import ApiError
from tests.fakes.asking import chat, texts
from tests.fakes.text import byte_level, served

TEXT_OF = "{% if part.type == 'text' %}{{ part.text }}{% endif %}"
PARTS = "{% for part in m.content %}" + TEXT_OF + "{% endfor %}"
TEXT = "{{ 'as text: ' + m.content }}"
BEGINNING = "{% for m in messages %}{{ '<|' + m.role + '|>' }}"
END = "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
LISTS = BEGINNING + "{{ 'nothing' if not m.content }}" + PARTS + END
EITHER = f"{BEGINNING}{{% if m.content is string %}}{TEXT}{{% else %}}{PARTS}{{% endif %}}{END}"
NEEDS_SYSTEM = (
    "{% if messages[0].role != 'system' %}{{ raise_exception('who am I?') }}{% endif %}"
)
TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": None},
    {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
]


async def written(template: str, messages: object = TALK) -> list[str]:
    return texts(await chat({"messages": messages}, door=served(byte_level(template))))


async def test_a_template_of_lists_gets_every_text_in_one() -> None:
    said = "<|system|>s<|user|>a<|assistant|>nothing<|user|>b\nc<|assistant|>"
    assert await written(LISTS) == [said]


async def test_a_template_that_takes_a_text_gets_it() -> None:
    said = "<|system|>as text: s<|user|>as text: a<|assistant|>as text: "
    assert await written(EITHER) == [f"{said}<|user|>as text: b\nc<|assistant|>"]


async def test_a_template_that_refuses_to_be_tried_gets_texts() -> None:
    said = "<|system|>as text: s<|user|>as text: a<|assistant|>as text: "
    assert await written(NEEDS_SYSTEM + EITHER) == [f"{said}<|user|>as text: b\nc<|assistant|>"]


@pytest.mark.parametrize("template", [LISTS, EITHER])
async def test_an_image_is_refused_whatever_the_template_reads(template: str) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(ApiError, match="only parts of type text") as refusal:
        await written(template, [{"role": "user", "content": image}])
    assert refusal.value.status == 400

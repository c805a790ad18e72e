"""What only a tokenizer is asked for, in vLLM's words: how long a prompt is, what it says."""

import pytest
from tokenizers import Tokenizer, processors

from api.encoding import MOST_TOKENS
from api.text.tokenizing import LONG, TextCodec
from tests.fakes.http import Client, Json
from tests.fakes.text import TEXT, byte_level, saying, served

CODEC = byte_level()
PLAIN = list(CODEC.encode(TEXT))
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
AROUND: list[Json] = [{}, {"add_special_tokens": True}, {"add_special_tokens": False}]
TOLD_OF_TOOLS = (
    "{{ tools | map(attribute='function') | map(attribute='name') | join }}"
    "{{ '/no' if enable_thinking is false }}{{ messages[0].content }}"
)


def _client(template: str | None = None, **fields: int | None) -> Client:
    codec = CODEC if template is None else byte_level(template)
    return Client(saying(TEXT), served(codec, **fields))


async def test_a_prompt_is_told_as_a_completion_would_read_it() -> None:
    client = _client()
    said = await client.post("/tokenize", model="alias", prompt=TEXT)
    assert said.status == 200
    whole = {"count": len(PLAIN), "max_model_len": 200, "tokens": PLAIN, "token_strs": None}
    assert said.json == whole
    answer = await client.complete(prompt=TEXT, return_token_ids=True)
    assert answer.json["choices"][0]["prompt_token_ids"] == PLAIN


async def test_messages_are_told_as_a_chat_would_read_them() -> None:
    client = _client()
    answer = await client.chat(messages=HI, return_token_ids=True)
    said = await client.post("/tokenize", messages=HI)
    assert said.json["tokens"] == answer.json["prompt_token_ids"]
    assert said.json["count"] == answer.json["usage"]["prompt_tokens"]
    shorter = await client.post("/tokenize", messages=HI, add_generation_prompt=False)
    assert CODEC.decode(shorter.json["tokens"]) == "<|user|>hi"


async def test_tools_and_variables_of_the_template_count() -> None:
    client = _client(TOLD_OF_TOOLS)
    plain = await client.post("/tokenize", messages=HI, tools=[TOOL])
    assert CODEC.decode(plain.json["tokens"]) == "fhi"
    quiet = await client.post("/tokenize", messages=HI, reasoning_effort="none")
    assert CODEC.decode(quiet.json["tokens"]) == "/nohi"
    told = await client.post(
        "/tokenize", messages=HI, chat_template_kwargs={"enable_thinking": False}
    )
    assert told.json["tokens"] == quiet.json["tokens"]
    client = _client("{% for one in documents or [] %}{{ one.text }}{% endfor %}hi")
    read = await client.post("/tokenize", messages=HI, documents=[{"text": "the"}])
    assert CODEC.decode(read.json["tokens"]) == "thehi"


async def test_tokens_are_named_as_the_vocabulary_has_them() -> None:
    said = await _client().post("/tokenize", prompt=" the</s>", return_token_strs=True)
    assert "".join(said.json["token_strs"]) == "Ġthe</s>"
    assert len(said.json["token_strs"]) == said.json["count"]


@pytest.mark.parametrize("times", [1, LONG // len(TEXT) + 1])
async def test_text_and_back(times: int) -> None:
    client, text = _client(), TEXT * times + "</s>"
    tokens = (await client.post("/tokenize", prompt=text)).json["tokens"]
    assert (await client.post("/detokenize", tokens=tokens)).json == {"prompt": text}
    assert len(tokens) > 200 or times == 1  # what no context holds has a length, too


@pytest.mark.parametrize(("what", "usual"), [({"prompt": "the"}, 1), ({"messages": HI}, 0)])
async def test_what_goes_around_a_text_is_there_as_for_answers(what: Json, usual: int) -> None:
    client = Client(saying(TEXT), served(_marking_beginnings()))
    told = [
        (await client.post("/tokenize", **what, **fields)).json["tokens"].count(0)
        for fields in AROUND
    ]
    assert told == [usual, 1, 0]


def _marking_beginnings() -> TextCodec:
    assert CODEC.fast is not None
    tokenizer = Tokenizer.from_str(CODEC.fast.to_str())
    tokenizer.post_processor = processors.TemplateProcessing("</s> $A", None, [("</s>", 0)])
    return TextCodec(CODEC.tokenizer, tokenizer)


async def test_a_door_that_knows_no_context_says_none() -> None:
    said = await _client(context=None).post("/tokenize", prompt="the")
    assert said.json["max_model_len"] is None


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "the", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["the"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": [{"role": "villain", "content": ""}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [len(CODEC.tokenizer.get_vocab())]}, "tokens"),
        ("/detokenize", {"tokens": [1] * (MOST_TOKENS + 1)}, "tokens"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(path: str, fields: Json, param: str) -> None:
    said = await _client().post(path, **fields)
    assert (said.status, said.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize("fields", [{"prompt": "the"}, {"tokens": [1]}])
async def test_a_model_that_is_not_served_is_a_404(fields: Json) -> None:
    path = "/tokenize" if "prompt" in fields else "/detokenize"
    assert (await _client().post(path, model="other", **fields)).status == 404

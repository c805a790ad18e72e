"""GLM, DeepSeek and Kimi over HTTP: calls come out of answers and go back into templates.

The templates have the shape of those that were published with the models, as far as it matters
for calls.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from api.generator import Event, Leg
from api.served import ServedModel
from api.tools.dialects.deepseek import CALL, CLOSES, END, OPENS, SEPARATOR
from api.tools.dialects.known import DIALECTS, find_dialect
from engine.request import Request
from tests.fakes.http import Client, Json
from tests.fakes.text import EOS, FakeDoor, says, served
from tests.fakes.tools import special
from tests.integration.test_tool_calls import ask, heard, summary

ODD = '{"city":  "Paris"}'
GLM = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for tc in m.tool_calls or [] %}"
    "{% set f = tc.function %}{{ '' if loop.first else '\n' }}<tool_call>{{ f.name }}\n"
    "{% for k, v in f.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>"
    "{{ v if v is string else v|tojson(ensure_ascii=False) }}</arg_value>{{ '\n' }}"
    "{% endfor %}</tool_call>{% endfor %}{% endfor %}<|assistant|>"
)
DEEPSEEK_V3 = (
    "{% for m in messages %}{% if m['role'] == 'assistant' and 'tool_calls' in m %}"
    "{% for one in m['tool_calls'] %}{% if loop.first %}"
    f"{{{{ '<Assistant>' + m['content'] + '{OPENS}' }}}}{{% else %}}{{{{ '\n' }}}}{{% endif %}}"
    f"{{{{ '{CALL}' + one['type'] + '{SEPARATOR}' + one['function']['name'] + '\n```json\n'"
    f" + one['function']['arguments'] + '\n```' + '{END}' }}}}{{% endfor %}}{CLOSES}"
    "{% else %}{{ '<' + m['role'] + '>' + m['content'] }}{% endif %}{% endfor %}<Assistant>"
)
DEEPSEEK_V31 = (
    "{% for m in messages %}{% if m['tool_calls'] is defined %}{% for one in m['tool_calls'] %}"
    f"{{% set called = '{CALL}' + one['function']['name'] + '{SEPARATOR}'"
    f" + one['function']['arguments'] + '{END}' %}}"
    f"{{% if loop.first %}}{{{{ m['content'] + '{OPENS}' + called }}}}"
    f"{{% else %}}{{{{ called }}}}{{% endif %}}{{% endfor %}}{CLOSES}"
    "{% else %}{{ '<' + m['role'] + '>' + m['content'] }}{% endif %}{% endfor %}<Assistant>"
)
KIMI = (
    "{% for m in messages %}<|im_{{ m.get('name') or m.role }}|>{% if m.role == 'tool' %}"
    "## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content }}{% if m.get('tool_calls') %}"
    "<|tool_calls_section_begin|>{% for one in m['tool_calls'] %}"
    "<|tool_call_begin|>{{ one['id'] }}<|tool_call_argument_begin|>"
    "{% if one['function']['arguments'] is string %}{{ one['function']['arguments'] }}"
    "{% else %}{{ one['function']['arguments'] | tojson }}{% endif %}<|tool_call_end|>"
    "{% endfor %}<|tool_calls_section_end|>{% endif %}{% endfor %}<|im_assistant|>"
)
TWO_OF_GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7 <b></arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>clock\n"
    "</tool_call>"
)
TWO_OF_V3 = (
    f"{OPENS}{CALL}function{SEPARATOR}weather\n```json\n{ODD}\n```{END}\n"
    f"{CALL}function{SEPARATOR}clock\n```json\n{{}}\n```{END}{CLOSES}"
)
TWO_OF_V31 = f"{OPENS}{CALL}weather{SEPARATOR}{ODD}{END}{CALL}clock{SEPARATOR}{{}}{END}{CLOSES}"
TWO_OF_KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:4"
    '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>'
    "functions.clock:5<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
)
FAMILIES = [
    ("glm45", GLM, TWO_OF_GLM, '{"city": "7 <b>", "days": 3}'),
    ("deepseek_v3", DEEPSEEK_V3, TWO_OF_V3, ODD),
    ("deepseek_v31", DEEPSEEK_V31, TWO_OF_V31, ODD),
    ("kimi_k2", KIMI, TWO_OF_KIMI, '{"city": "Paris"}'),
]
"""A dialect, the template of its models, an answer with two calls, the first's arguments."""
KIMI_OPENS = "<|tool_calls_section_begin|>"
HI = {"role": "user", "content": "hi"}


@dataclass
class Model:
    """Says these, one in each answer, in a tokenizer that has all their marks as special
    tokens.
    """

    dialect: str
    template: str
    answers: Sequence[str]
    prompts: list[str] = field(default_factory=list)
    served: ServedModel | None = None

    def client(self) -> Client:
        """The model is known by its template."""
        marks = {one for text in self.answers for one in re.findall("<[^<> ]{2,}>", text)}
        codec = special(*sorted(marks), end="", template=self.template)
        assert find_dialect("auto", codec.tokenizer.chat_template) is DIALECTS[self.dialect]

        def script(request: Request, _: Leg) -> Sequence[Event]:
            self.prompts.append(codec.decode(request.prompt, skip_special_tokens=False))
            return says([*codec.encode(self.answers[len(self.prompts) - 1]), EOS])

        self.served = served(codec, context=10_000)
        return Client(FakeDoor(script), self.served)


async def said(door: Client, stream: bool, **fields: object) -> Json:
    [choice] = heard(await ask(door, stream=stream, max_tokens=1000, **fields))
    return choice


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("dialect", "template", "answer", "arguments"), FAMILIES)
async def test_calls_come_out_and_go_back_as_the_model_wrote_them(
    dialect: str, template: str, answer: str, arguments: str, stream: bool
) -> None:
    model = Model(dialect, template, [answer, "the sea"])
    door = model.client()
    choice = await said(door, stream)
    calls = [("weather", arguments), ("clock", "{}")]
    assert summary(choice) == ("", calls, "tool_calls")
    message: Any = choice["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "fine"}
        for call in message["tool_calls"]
    ]
    again = await said(door, stream, messages=[HI, message, *results])
    assert summary(again) == ("the sea", [], "stop")
    assert answer in model.prompts[1]


@pytest.mark.parametrize(("dialect", "template", "answer", "arguments"), FAMILIES)
async def test_text_may_stand_around_calls_and_be_all_there_is(
    dialect: str, template: str, answer: str, arguments: str
) -> None:
    door = Model(dialect, template, [f"Hm. {answer}\nSo.", answer, answer]).client()
    choice = await said(door, stream=True)
    assert summary(choice)[0] == "Hm.\nSo."
    assert summary(choice)[1][0] == ("weather", arguments)
    one = await said(door, stream=True, parallel_tool_calls=False)
    assert summary(one) == ("", [("weather", arguments)], "tool_calls")
    silent = await said(door, stream=False, tool_choice="none")
    assert summary(silent)[1:] == ([], "stop")


@pytest.mark.parametrize(("dialect", "template", "answer", "arguments"), FAMILIES)
async def test_marks_that_make_no_call_are_told_to_the_last_letter(
    dialect: str, template: str, answer: str, arguments: str
) -> None:
    """Also behind calls, where a mark that was hidden would leave a section open."""
    marks = "".join(reversed(DIALECTS[dialect].markers))
    opens = next((one for one in (OPENS, KIMI_OPENS) if answer.startswith(one)), "<tool_call>")
    behind = f"So {answer.removeprefix(opens)}"
    door = Model(dialect, template, [f"So {marks}", f"{answer}{behind}"]).client()
    assert summary(await said(door, stream=True))[:2] == (f"So {marks}", [])
    again = summary(await said(door, stream=True))
    if dialect != "glm45":
        assert again[:2] == (behind, [("weather", arguments), ("clock", "{}")])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_kimis_calls_have_its_own_names_also_where_they_are_forced(
    stream: bool,
) -> None:
    forced = '[{"name": "clock", "parameters": {}}, {"name": "clock", "parameters": {}}]'
    model = Model("kimi_k2", KIMI, [TWO_OF_KIMI, forced, "{}"])
    door = model.client()
    first: Any = await said(door, stream)
    ids = [call["id"] for call in first["message"]["tool_calls"]]
    assert ids == ["functions.weather:4", "functions.clock:5"]
    result = {"role": "tool", "tool_call_id": ids[0], "content": "fine"}
    past = [HI, first["message"], result]
    second: Any = await said(door, stream, messages=past, tool_choice="required")
    assert "## Return of functions.weather:4\nfine" in model.prompts[1]
    ids = [call["id"] for call in second["message"]["tool_calls"]]
    assert ids == ["functions.clock:2", "functions.clock:3"]
    named = {"type": "function", "function": {"name": "clock"}}
    third: Any = await said(door, stream, tool_choice=named)
    assert [call["id"] for call in third["message"]["tool_calls"]] == ["functions.clock:0"]
    assert model.served
    model.served.grammars.close()


def played(events: Sequence[Event], _request: Request, _leg: Leg) -> Sequence[Event]:
    """Always the same answer."""
    return events


async def test_kimis_reasoning_ends_where_its_calls_begin() -> None:
    marks = re.findall("<[^<>]+>", f"<think></think>{TWO_OF_KIMI}")
    codec = special(*dict.fromkeys(marks), end="", template=KIMI)
    for close in ("", "</think>"):
        events = says([*codec.encode(f"<think>Hm.{close}{TWO_OF_KIMI}"), EOS])
        model = replace(served(codec, context=10_000), reasoning_parser="kimi_k2")
        door = Client(FakeDoor(partial(played, events)), model)
        for stream in (False, True):
            choice: Any = await said(door, stream)
            assert choice["message"]["reasoning"] == "Hm."
            assert summary(choice)[1][1] == ("clock", "{}")
            assert summary(choice)[2] == "tool_calls"
            plain: Any = await said(door, stream, tool_choice="none")
            assert plain["message"]["reasoning"] == "Hm."


async def test_a_call_that_must_be_made_begins_behind_the_closing_mark_alone() -> None:
    """A node takes no other for the end of reasoning: its grammar does not begin there."""
    marks = re.findall("<[^<>]+>", f"<think></think>{TWO_OF_KIMI}")
    codec = special(*dict.fromkeys(marks), end="", template=KIMI)
    answer = f'<think>Hm. {TWO_OF_KIMI}</think>[{{"name": "clock", "parameters": {{}}}}]'
    events = says([*codec.encode(answer), EOS])
    model = replace(served(codec, context=10_000), reasoning_parser="kimi_k2")
    door = Client(FakeDoor(partial(played, events)), model)
    for stream in (False, True):
        choice: Any = await said(door, stream, tool_choice="required")
        assert summary(choice) == ("", [("clock", "{}")], "tool_calls")
        assert choice["message"]["reasoning"].startswith("Hm. functions.weather:4")
    model.grammars.close()

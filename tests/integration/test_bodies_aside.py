"""A large body that becomes a chat, and a grammar for it, are made where no stream waits."""

import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

import pytest

from api import endpoints
from api.messages import to_chat as messages
from api.request_grammars import RequestGrammars
from api.tools.calling import ToolCalling, tool_calling_of
from api.tools.structured import StructuredOutput
from api.tools.tool_choice import ToolSettings
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar
from tests.fakes.http import Client, Json
from tests.fakes.messages import CODEC, COUNT
from tests.fakes.text import FakeDoor, served
from tests.fakes.tools import offered, tool

LARGE = "the sea " * 8_000
FORMS: Mapping[str, tuple[ModuleType, Callable[[str], Json]]] = {
    COUNT: (messages, lambda text: {"messages": [{"role": "user", "content": text}]}),
    "/v1/responses/input_tokens": (endpoints, lambda text: {"input": text}),
}


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    with GrammarChecker() as opened:
        yield opened


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(("text", "aside"), [("hi", False), (LARGE, True)])
async def test_a_large_body_becomes_a_chat_in_a_thread(
    path: str, text: str, *, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, body = FORMS[path]
    threads = watched(monkeypatch, owner, "chat_of")
    door = Client(FakeDoor(lambda request, leg: []), served(CODEC, context=None))
    said = await door.post(path, **body(text))
    assert said.status == 200, said.body
    assert [one != threading.main_thread() for one in threads] == [aside]


async def test_calls_beside_a_form_are_written_in_a_thread(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again, with any arguments, where nothing can be held to a function's schema."""
    threads = watched(monkeypatch, ToolCalling, "calls_or_structured")
    schemas = {"clock": {}, "odd": {"properties": {"a": {"not": {}}}, "required": ["a"]}}
    use = ToolSettings(
        offered([tool(name, schema) for name, schema in schemas.items()]), "auto"
    )
    calling = tool_calling_of(use, "hermes", None, [], formed=True)
    holding = RequestGrammars(checker, "response_format", calling)
    grammar = await holding.allow_tool_calls(StructuredOutput(Grammar("json_object")))
    assert grammar
    assert '"not"' not in grammar.source
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def watched(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> list[threading.Thread]:
    """Where a function is called, from now on."""
    threads, usual = list[threading.Thread](), getattr(owner, name)

    def called(*given: object) -> object:
        threads.append(threading.current_thread())
        return usual(*given)

    monkeypatch.setattr(owner, name, called)
    return threads

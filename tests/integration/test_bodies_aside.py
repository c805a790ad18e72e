"""A large body that becomes a chat is read where it holds up no stream."""

import threading
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

from api import endpoints
from api.messages import asking as messages
from tests.fakes.http import Client, Json
from tests.fakes.messages import CODEC, COUNT
from tests.fakes.text import FakeDoor, served

LARGE = "the sea " * 8_000
FORMS: Mapping[str, tuple[ModuleType, Callable[[str], Json]]] = {
    COUNT: (messages, lambda text: {"messages": [{"role": "user", "content": text}]}),
    "/v1/responses/input_tokens": (endpoints, lambda text: {"input": text}),
}


@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(("text", "aside"), [("hi", False), (LARGE, True)])
async def test_a_large_body_becomes_a_chat_in_a_thread(
    path: str, text: str, *, aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, body = FORMS[path]
    threads, chat_of = list[str](), owner.chat_of

    def watched(given: object) -> object:
        threads.append(threading.current_thread().name)
        return chat_of(given)

    monkeypatch.setattr(owner, "chat_of", watched)
    door = Client(FakeDoor(lambda request, leg: []), served(CODEC, context=None))
    said = await door.post(path, **body(text))
    assert said.status == 200, said.body
    assert (threads != [threading.main_thread().name]) is aside

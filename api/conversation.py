"""A conversation told piece by piece, by items or by blocks, as the messages of a chat. Pure.

reasoning, text, call, call     one message of the assistant: content and two calls
text, text                      two messages
"""

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(slots=True)
class AssistantTurn:
    """A message of the assistant as its items come in."""

    content: list[Message] = field(default_factory=list)
    calls: list[Message] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)  # behind content: whose it is, is to come

    @property
    def over(self) -> bool:
        """Whether content that comes now is another message's."""
        return bool(self.content) and not self.calls

    def think(self, text: str) -> None:
        """Reasoning, before what it is about."""
        (self.later if self.over else self.reasoning).append(text)

    def call(self, call: Message) -> None:
        """A call of a tool."""
        self.reasoning += self.later
        self.later = []
        self.calls.append(call)

    def followed(self) -> "AssistantTurn":
        """The next message, with the reasoning that turned out to be its own."""
        later, self.later = self.later, []
        return AssistantTurn(reasoning=later)

    def message(self) -> Message:
        """As chats have it."""
        said: Message = {"role": "assistant", "content": self.content or None}
        if thought := self.reasoning + self.later:
            said["reasoning_content"] = "\n".join(thought)
        if self.calls:
            said["tool_calls"] = self.calls
        return said


@dataclass(slots=True)
class Conversation:
    """Messages as chats have them, in the order of items."""

    messages: list[Message] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of functions, by their calls' ids
    _turn: AssistantTurn | None = None

    @property
    def turn(self) -> AssistantTurn:
        """The assistant's, which goes on until somebody else says something."""
        if self._turn is None:
            self._turn = AssistantTurn()
        return self._turn

    @property
    def called(self) -> bool:
        """Whether the assistant has called functions, and nobody has said anything since."""
        return self._turn is not None and bool(self._turn.calls)

    def say(self, content: list[Message]) -> None:
        """The assistant's words."""
        if self.turn.over:
            following = self.turn.followed()
            self.messages.append(self.turn.message())
            self._turn = following
        self.turn.content += content

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """The assistant calls a function."""
        self.names[call_id] = name
        function = {"name": name, "arguments": arguments}
        self.turn.call({"id": call_id, "type": "function", "function": function})

    def returned(self, call_id: str, content: list[Message]) -> None:
        """What a function came to."""
        named = {"name": self.names[call_id]} if call_id in self.names else {}
        told = {"role": "tool", "tool_call_id": call_id, **named, "content": content}
        self.add(told)

    def instruct(self, content: list[Message]) -> None:
        """What comes before all else is one message: many templates know one at most."""
        if self._turn is None and len(self.messages) == 1 and self._instructed:
            self.messages[0]["content"] += content
        else:
            self.add({"role": "system", "content": content})

    def add(self, message: Message) -> None:
        """Of anybody but the assistant."""
        self.finish()
        self.messages.append(message)

    def finish(self) -> list[Message]:
        """All of them."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None
        return self.messages

    @property
    def _instructed(self) -> bool:
        return bool(self.messages[0]["role"] == "system")

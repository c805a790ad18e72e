"""Builds chat messages from the items or content blocks of other APIs. Pure.

reasoning, text, call, call     one message of the assistant: content and two calls
text, text                      two messages
"""

from dataclasses import dataclass, field
from typing import Any

JsonObject = dict[str, Any]


@dataclass(slots=True)
class AssistantTurn:
    """A message of the assistant, built item by item."""

    content: list[JsonObject] = field(default_factory=list)
    calls: list[JsonObject] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    later_reasoning: list[str] = field(
        default_factory=list
    )  # after content: of this message or of the next

    @property
    def has_final_content(self) -> bool:
        """Whether further content begins another message."""
        return bool(self.content) and not self.calls

    def add_reasoning(self, text: str) -> None:
        """Add reasoning, which comes before what it is about."""
        (self.later_reasoning if self.has_final_content else self.reasoning).append(text)

    def add_call(self, call: JsonObject) -> None:
        """Add a tool call; reasoning since the content belongs to it."""
        self.reasoning += self.later_reasoning
        self.later_reasoning = []
        self.calls.append(call)

    def next_turn(self) -> "AssistantTurn":
        """The next message of the assistant, with the reasoning that belongs to it."""
        later, self.later_reasoning = self.later_reasoning, []
        return AssistantTurn(reasoning=later)

    def message(self) -> JsonObject:
        """The message of a chat."""
        said: JsonObject = {"role": "assistant", "content": self.content or None}
        if thought := self.reasoning + self.later_reasoning:
            said["reasoning_content"] = "\n".join(thought)
        if self.calls:
            said["tool_calls"] = self.calls
        return said


@dataclass(slots=True)
class Conversation:
    """The messages of a chat, in the order of the items that were added."""

    messages: list[JsonObject] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of functions, by their calls' ids
    _turn: AssistantTurn | None = None

    @property
    def turn(self) -> AssistantTurn:
        """The assistant's current message, open until another role's message comes."""
        if self._turn is None:
            self._turn = AssistantTurn()
        return self._turn

    @property
    def has_open_calls(self) -> bool:
        """Whether the last message is the assistant's and has tool calls."""
        return self._turn is not None and bool(self._turn.calls)

    def add_assistant_content(self, content: list[JsonObject]) -> None:
        """Add content of the assistant."""
        if self.turn.has_final_content:
            following = self.turn.next_turn()
            self.messages.append(self.turn.message())
            self._turn = following
        self.turn.content += content

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a function call of the assistant."""
        self.names[call_id] = name
        function = {"name": name, "arguments": arguments}
        self.turn.add_call({"id": call_id, "type": "function", "function": function})

    def add_tool_result(self, call_id: str, content: list[JsonObject]) -> None:
        """Add the result of a function call."""
        named = {"name": self.names[call_id]} if call_id in self.names else {}
        told = {"role": "tool", "tool_call_id": call_id, **named, "content": content}
        self.add_message(told)

    def add_instructions(self, content: list[JsonObject]) -> None:
        """Add instructions; leading ones become one message, as many templates allow one."""
        if self._turn is None and len(self.messages) == 1 and self._instructed:
            self.messages[0]["content"] += content
        else:
            self.add_message({"role": "system", "content": content})

    def add_message(self, message: JsonObject) -> None:
        """Add a message of any role but the assistant."""
        self.finish()
        self.messages.append(message)

    def finish(self) -> list[JsonObject]:
        """All messages; closes the assistant's."""
        if self._turn is not None:
            self.messages.append(self._turn.message())
            self._turn = None
        return self.messages

    @property
    def _instructed(self) -> bool:
        return bool(self.messages[0]["role"] == "system")

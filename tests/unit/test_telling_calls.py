"""What is told of calls, and how much work that is."""

from collections.abc import Iterator

from api.tools.calling import ToolCalling
from api.tools.deltas import CallDelta, CalledFunction, ToolCall, join_deltas
from api.tools.dialects.dialect import long_id
from api.tools.dialects.known import DIALECTS
from api.tools.tool_choice import ToolSettings
from engine.request import FinishReason
from tests.fakes.tools import offered


class Counted(list[str | CallDelta]):
    """Says how often all of it was looked at."""

    times = 0

    def __iter__(self) -> Iterator[str | CallDelta]:
        self.times += 1
        return super().__iter__()


def test_a_message_of_many_calls_is_put_together_in_few_looks() -> None:
    calling = ToolCalling(
        ToolSettings(offered(), "auto"), DIALECTS["glm45"].parser, long_id, ()
    )
    text = "So<tool_call>clock</tool_call>" * 50
    said = Counted(calling.new_stream().read(text, FinishReason.STOP))
    content, calls = join_deltas(said)
    assert (content, len(calls), said.times) == ("So" * 50, 50, 2)
    assert set(calls) == {ToolCall(one.id, CalledFunction("clock", "{}")) for one in calls}

"""Behind which tokens a grammar begins, as nodes are told, and as nobody should tell them."""

import msgspec
import pytest

from api.generate import NodeCall, decode_call, encode_call
from api.node_sampling import decode_sampling
from api.wire import WireError
from engine.request import Grammar, ReasoningMarks, Request, RequestId, Sampling
from node.ipc import SubmitLeg, decode_to_engine, encode
from proxy.foreign.bodies import UnsupportedByVllm, sampling_params

RID = RequestId("r")


def asking(marks: ReasoningMarks) -> Request:
    return Request(RID, (1, 2), Sampling(grammar=Grammar("regex", "a"), grammar_behind=marks))


@pytest.mark.parametrize(
    "marks",
    [
        ReasoningMarks(((4,),)),
        ReasoningMarks(((4, 6), (5, 1, 6))),
        ReasoningMarks(((4,),), ((6,), (9, 6))),
    ],
)
def test_marks_travel_to_nodes_and_into_engines(marks: ReasoningMarks) -> None:
    call = NodeCall(asking(marks))
    assert decode_call(encode_call(call), request_id=RID) == call
    submit = SubmitLeg(call.request, call.leg, 0.0)
    assert decode_to_engine(encode(submit)) == submit


def test_nodes_of_vllm_are_not_told_of_marks() -> None:
    said = sampling_params(asking(ReasoningMarks(((4,),))), hold=False)
    assert said["structured_outputs"] == {"regex": "a"}
    assert "grammar_behind" not in said


def tagged(*parts: object) -> Request:
    tag = {"type": "structural_tag", "format": {"type": "sequence", "elements": parts}}
    grammar = Grammar("structural_tag", msgspec.json.encode(tag).decode())
    return Request(RID, (1, 2), Sampling(grammar=grammar))


@pytest.mark.parametrize("names", [{}, {"properties": {"unlike": {"type": "lark"}}}])
@pytest.mark.parametrize("ours", [{}, {"unlike": "a+"}])
def test_nodes_of_vllm_are_told_tags_without_what_is_ours(
    names: dict[str, object], ours: dict[str, object]
) -> None:
    schema = {"type": "json_schema", "json_schema": names}
    text = {"type": "any_text", "excludes": ["<"]}
    said = sampling_params(tagged(schema, text | ours), hold=False)
    wanted = tagged(schema, text).sampling.grammar
    assert wanted is not None
    assert said["structured_outputs"] == {"structural_tag": wanted.source}


def test_grammars_of_custom_tools_cannot_be_told_to_nodes_of_vllm() -> None:
    with pytest.raises(UnsupportedByVllm, match="a custom tool"):
        sampling_params(tagged({"type": "lark", "lark": "start: /a/"}), hold=False)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({}, "grammar_behind.closes"),
        ({"closes": []}, "grammar_behind.closes"),
        ({"closes": [[]]}, "grammar_behind.closes[0]"),
        ({"closes": [[1]] * 9}, "grammar_behind.closes"),
        ({"closes": [[1] * 65]}, "grammar_behind.closes[0]"),
        ({"closes": [[3], [1, -1]]}, "grammar_behind.closes[1][1]"),
        ({"closes": [[2**31]]}, "grammar_behind.closes[0][0]"),
        ({"closes": [[1]], "opens": [[2], []]}, "grammar_behind.opens[1]"),
        ({"closes": [[1]], "opens": [[1]] * 9}, "grammar_behind.opens"),
        ([1], "grammar_behind"),
    ],
)
def test_what_can_be_no_marks_is_refused_by_its_name(given: object, param: str) -> None:
    wish = {"structured_outputs": {"regex": "a"}, "grammar_behind": given}
    with pytest.raises(WireError) as refused:
        decode_sampling(wish, 0, RID)
    assert refused.value.param == param


def test_marks_without_a_grammar_are_refused() -> None:
    with pytest.raises(WireError, match="needs structured_outputs") as refused:
        decode_sampling({"grammar_behind": {"closes": [[1]]}}, 0, RID)
    assert refused.value.param == "grammar_behind"

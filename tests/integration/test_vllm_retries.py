"""A node of vLLM that breaks off within an answer: another goes on where it was."""

from typing import Any

import pytest

from discovery.registration import Role
from tests.fakes.text import byte_level
from tests.fakes.vllm_cluster import ask, behind, golden, pair, tokens_of
from tests.fakes.vllm_node import Connector, VllmNode

FORM = '{"the": "cat sat on the mat"}'
TOKENS = [*byte_level().encode(FORM)]
FORMED: dict[str, Any] = {"structured_outputs": {"choice": [FORM]}, "max_tokens": 40}


@pytest.mark.parametrize("connector", Connector)
@pytest.mark.parametrize("token_endpoint", [True, False])
@pytest.mark.parametrize("formed", [True, False])
@pytest.mark.parametrize("said", [1, 3])
async def test_an_answer_goes_on(
    connector: Connector, token_endpoint: bool, formed: bool, said: int
) -> None:
    """In its form, too: vLLM begins one with each answer, so it would be begun twice."""
    prefill, decode = pair(connector, token_endpoint=token_endpoint)
    other = VllmNode(Role.DECODE, prefill.network, connector, token_endpoint)
    fields, expected = (FORMED, TOKENS) if formed else ({}, golden())
    async with behind(prefill, decode, other) as proxy:
        await ask(proxy)  # from now on a node that pushes is asked beside the other
        prefill.network.breaks_at = said
        answer = await ask(proxy, **fields)
    assert tokens_of(answer) == expected
    assert answer["choices"][0]["finish_reason"] == ("stop" if formed else "length")
    assert prefill.network.breaks_at is None

"""The same script is the same story, and the page that explains it tells the truth."""

import contextlib
import io
import re
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import KINDS, Cut, Delay, Fault, On, Step
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import Ill

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "replay-a-failure.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```.*?```text\n(?P<said>.*?)```", re.DOTALL)
REQUEST = Request(RequestId("r"), tuple(range(30)), Sampling(6, seed=7))
HARMLESS = [Fault.DELAY, Fault.DUPLICATE, Fault.CUT, Delay(0.3), Cut(9)]

mishaps = st.sampled_from([*HARMLESS, Fault.DROP])
named = st.one_of(
    st.builds(On, st.sampled_from(KINDS), st.sampled_from(HARMLESS)),
    st.builds(On, st.sampled_from(["look", "settle", "abandon"]), mishaps),
)
steps = st.one_of(st.none(), mishaps, named)
scripts = st.lists(steps, max_size=8)
ills = st.dictionaries(st.integers(1, 20), st.sampled_from(Ill), max_size=1)


def cluster_of(script: list[Step], ill: dict[int, Ill]) -> Cluster:
    cluster = Cluster(2, 2, engine=lambda: FakeEngine(chunk=4), turn_s=0.01)
    for sink in cluster.sinks:
        sink.faults = deque(script)
    cluster.decodes[0].script.update(ill)
    return cluster


def test_the_page_prints_what_it_says() -> None:
    told = list(BLOCK.finditer(PAGE.read_text()))
    assert told
    for block in told:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block["code"], PAGE.name, "exec"), {})
        assert printed.getvalue() == block["said"]


@given(script=scripts, ill=ills)
async def test_the_same_script_is_the_same_story(
    script: list[Step], ill: dict[int, Ill]
) -> None:
    journals = list[list[str]]()
    for _ in range(2):
        cluster = cluster_of(script, ill)
        assert await cluster.ask(REQUEST) == alone(REQUEST)
        cluster.expire()
        assert cluster.leaked_blocks == 0
        journals.append(cluster.journal)
    assert journals[0] == journals[1]


async def test_a_delayed_settlement_takes_as_long_as_the_script_says() -> None:
    cluster = cluster_of([On("settle", Delay(0.5))], {})
    assert await cluster.ask(REQUEST) == alone(REQUEST)
    times = [float(line.split()[0]) for line in cluster.journal if "settle" in line]
    assert len(times) == 2
    assert times[1] - times[0] >= 0.5


async def test_a_link_breaks_after_that_many_bytes() -> None:
    cluster = cluster_of([On("read", Cut(at_byte=40))], {})
    stream = cluster.pipeline.stream(REQUEST)
    while not any("was cut" in line for line in cluster.journal):
        await anext(stream)
    memories = [
        one.engine.memory for one in cluster.decodes if isinstance(one.engine, FakeEngine)
    ]
    assert 32 < sum(map(bool, b"".join(memories))) <= 40
    await stream.aclose()


async def test_a_read_that_never_ends_ends_with_its_source() -> None:
    cluster = cluster_of([On("read", Fault.DROP)], {})
    stream = cluster.pipeline.stream(REQUEST)
    tokens = await next_tokens(stream)
    for node in cluster.prefills:
        node.suffer(Ill.KILL)
    assert tokens + await tokens_of(stream) == alone(REQUEST)
    cluster.settle()
    assert cluster.leaked_blocks == 0


def test_a_kind_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="kind 'reed' is not one of hello"):
        On("reed", Fault.CUT)  # type: ignore[arg-type]

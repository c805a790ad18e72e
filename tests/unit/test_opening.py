"""What of a device's memory is asked for where nothing is captured, and where KV is bounded."""

from typing import Any, cast

import pytest

from engine.running.opening import OpenDevice
from engine.settings import EngineConfig
from tests.fakes.device import FakeAccelerator


class Budget:
    """Has seven blocks for any models, and notes whether graphs are among what they need."""

    def __init__(self) -> None:
        self.graphs = list[bool]()

    def num_blocks(self, _models: object, *, graphs: bool) -> int:
        self.graphs.append(graphs)
        return 7


@pytest.mark.parametrize("is_eager", [False, True])
def test_graphs_take_memory_where_they_are_captured(is_eager: bool) -> None:
    budget = Budget()
    opened = OpenDevice(FakeAccelerator(), cast("Any", budget), is_eager)
    assert opened.num_blocks([]) == 7
    assert budget.graphs == [not is_eager]


@pytest.mark.parametrize("num_bytes", [None, 1 << 24])
def test_kv_of_a_given_size_has_no_other_budget(num_bytes: int | None) -> None:
    config = EngineConfig(model="m", kv_cache_memory_bytes=num_bytes)
    opened = OpenDevice.of(config, "cuda", FakeAccelerator())
    assert opened is not None
    assert (opened.budget is None) is (num_bytes is not None)

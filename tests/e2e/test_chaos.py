"""Half a minute of what `make chaos` does for three."""

from pathlib import Path

from tests.chaos.chaos import Chaos


async def test_whatever_dies_every_answer_is_whole_and_right(tiny: Path) -> None:
    chaos = Chaos(tiny, seed=1, seconds=30.0, rate=2.0)
    verdict = await chaos.run()
    assert verdict.is_good, "\n".join([verdict.show(), *chaos.lines])
    assert sum(verdict.done.values()) >= 3

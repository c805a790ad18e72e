"""What processes print, awaited."""

import asyncio
import re

PATIENCE_S = 180.0  # a machine that is busy with all else


async def line_with(
    stream: asyncio.StreamReader | None, wanted: re.Pattern[str]
) -> re.Match[str]:
    """The match in the first line that has one; AssertionError, with all lines, if they end."""
    assert stream
    seen = list[str]()
    async with asyncio.timeout(PATIENCE_S):
        while line := (await stream.readline()).decode():
            seen.append(line)
            if found := wanted.search(line):
                return found
    raise AssertionError("".join(seen))

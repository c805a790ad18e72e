"""`python -m bench.chats`: what rendering and tokenizing a growing chat costs at each turn.

Each chat is sent repeatedly with a different last turn, in a body as a client would send it:
parsed, rendered by the bundled model's template, encoded. It is compared with the same chat
with a `cache_salt`, which may not be cached: all of it is encoded each time.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import cyclopts
import msgspec

from api.bodies import read_chat
from api.request_parser import RequestParser
from api.served import ServedModel, read_whole_request
from api.text.tokenizing import load_text_codec
from deploy.config import DEMO_MODEL

CHATS = ((20, 200), (20, 1_000), (40, 2_000), (100, 2_000))  # turns, and characters of each
LAST = 200  # characters of a new turn
CONTEXT = 1 << 20
MS = 1e3
ROLES = ("user", "assistant")
TEXT = Path(__file__).parents[1] / "docs" / "architecture.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure; it takes some seconds."""

    runs: int = 9
    """How often each chat is asked, in turn with and without a salt."""


def main(options: Annotated[Options, cyclopts.Parameter(name="*")] | None = None) -> None:
    """Measure and print."""
    asyncio.run(_measure(options or Options()))


async def _measure(options: Options) -> None:
    codec = load_text_codec(DEMO_MODEL)
    asker = RequestParser(ServedModel(("demo",), codec, lambda: CONTEXT), read_whole_request)
    sys.stdout.write("turns  tokens   next turn   all of it\n")
    for turns, size in CHATS:
        ask = partial(_ask, asker, _messages(turns, size))
        times = [
            (await ask(run), await ask(run, cache_salt="mine")) for run in range(options.runs)
        ]
        (_, tokens), _ = times[0]
        known, unknown = (
            statistics.median(one[0] for one in row) for row in zip(*times, strict=True)
        )
        line = f"{turns:5} {tokens:7} {known * MS:8.2f} ms {unknown * MS:8.2f} ms"
        sys.stdout.write(line + "\n")


def _messages(turns: int, size: int) -> Sequence[dict[str, str]]:
    """All turns but the last."""
    letters = cycle(TEXT.read_text())
    texts = ("".join(islice(letters, size)) for _ in range(turns - 1))
    return [
        {"role": role, "content": text} for role, text in zip(cycle(ROLES), texts, strict=False)
    ]


async def _ask(
    asker: RequestParser, messages: Sequence[dict[str, str]], run: int, **fields: str
) -> tuple[float, int]:
    """Seconds for one request, and its tokens."""
    new = {"role": "user", "content": f"{run}, {messages[0]['content'][:LAST]}"}
    body = msgspec.json.encode({"messages": [*messages, new], **fields})
    since = time.perf_counter()
    asked = await asker.parse_chat(read_chat(body), "bench", len(body))
    return time.perf_counter() - since, len(asked.calls[0].request.prompt)


if __name__ == "__main__":
    cyclopts.run(main)

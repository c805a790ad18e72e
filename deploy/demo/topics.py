"""What the demo model is taught: the files under data/, read into topics and word lists."""

import re
import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TOPIC_FILES = ("serving.toml", "cluster.toml", "running.toml", "smalltalk.toml")


@dataclass(frozen=True, slots=True)
class Topic:
    """One answer and the ways to ask for it; `held` are asked only in the examination.

    `terms` fill the patterns that ask for a definition; `more` follows "tell me more".
    """

    answer: str
    ask: tuple[str, ...]
    held: tuple[str, ...]
    terms: tuple[str, ...] = ()
    more: str | None = None


@dataclass(frozen=True)
class Material:
    """Everything to learn: `off_topic` has no terms, but patterns with {words}."""

    topics: tuple[Topic, ...]
    off_topic: Topic
    off_topic_patterns: tuple[str, ...]
    words: dict[str, list[str]]
    patterns: dict[str, list[str]]
    prose: tuple[str, ...]

    @cached_property
    def vocabulary(self) -> list[str]:
        """The longer words of the prose and of all off-topic words, in a fixed order."""
        texts = (*self.prose, *(word for words in self.words.values() for word in words))
        return sorted({word for text in texts for word in re.findall(r"[a-z]{4,}", text)})


def read_material() -> Material:
    """Read everything in data/."""
    topics = [_topic(raw) for name in TOPIC_FILES for raw in _toml(name)["topic"]]
    off_topic = _toml("offtopic.toml")
    prose = (DATA / "prose.md").read_text().strip().split("\n\n")
    return Material(
        tuple(topics),
        Topic(off_topic["answer"], tuple(off_topic["ask"]), tuple(off_topic["held"])),
        tuple(off_topic["pattern"]),
        {key: value for key, value in off_topic.items() if isinstance(value, list)},
        _toml("patterns.toml"),
        tuple(prose),
    )


def _topic(raw: dict[str, Any]) -> Topic:
    return Topic(
        raw["answer"],
        tuple(raw["ask"]),
        (raw["held"],),
        tuple(raw.get("terms", ())),
        raw.get("more"),
    )


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((DATA / name).read_text())

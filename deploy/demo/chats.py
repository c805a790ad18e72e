"""From topics to chats: an endless, seeded stream of plausible conversations."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from deploy.demo.topics import Material, Topic

Message = dict[str, str]

OFF_TOPIC_SHARE = 0.25
WHOLE_SHARE = 0.25  # of the off-topic questions are used unchanged
BABBLE_SHARE = 0.5
PROSE_SHARE = 0.03
SYSTEM_SHARE = 0.4
LONGER_SHARE = 0.3
MOST_TURNS = 5
DEFINE_SHARE = 0.4
FOLLOW_UP_SHARE = 0.4
QUOTE_SHARE = 0.05
QUOTED_PARAGRAPHS = 3
FRAME_SHARE = 0.12
SWAP_SHARE = 0.25
SLOPPY_SHARE = 0.12
TYPO_SHARE = 0.04
CONSONANTS, VOWELS = "bcdfghjklmnprstvwz", "aeiou"
WORD = re.compile(r"\{(\w+)\}")


@dataclass(slots=True)
class ChatWriter:
    """Writes chats from the material; the same seed gives the same chats."""

    material: Material
    random: Random

    def chats(self) -> Iterator[list[Message]]:
        """One conversation after another; a lone assistant message is plain prose."""
        while True:
            yield self._prose() if self._happens(PROSE_SHARE) else self._chat()

    def _prose(self) -> list[Message]:
        return [{"role": "assistant", "content": self.random.choice(self.material.prose)}]

    def _chat(self) -> list[Message]:
        messages = list[Message]()
        if self._happens(SYSTEM_SHARE):
            messages.append(_message("system", self._pick("system")))
        longer = self._happens(LONGER_SHARE)
        turns = self.random.randint(2, MOST_TURNS) if longer else 1
        before: Topic | None = None
        for _ in range(turns):
            question, answer, before = self._turn(before)
            messages += [_message("user", question), _message("assistant", answer)]
        return messages

    def _turn(self, before: Topic | None) -> tuple[str, str, Topic | None]:
        """A question, its answer, and the topic that a follow-up would be about."""
        if before is not None and before.more and self._happens(FOLLOW_UP_SHARE):
            return self._sloppy(self._pick("follow_up")), before.more, None
        if self._happens(OFF_TOPIC_SHARE):
            return self._sloppy(self._off_topic()), self.material.off_topic.answer, None
        topic = self.random.choice(self.material.topics)
        return self._framed(self._question(topic)), topic.answer, topic

    def _question(self, topic: Topic) -> str:
        if topic.terms and self._happens(DEFINE_SHARE):
            return self._pick("define").format(self.random.choice(topic.terms))
        return self.random.choice(topic.ask)

    def _off_topic(self) -> str:
        topic = self.material.off_topic
        if self._happens(WHOLE_SHARE):
            return self.random.choice(topic.ask)
        pattern = self.random.choice(self.material.off_topic_patterns)
        return WORD.sub(lambda found: self._word(found[1]), pattern)

    def _word(self, kind: str) -> str:
        """A word of that kind; a `noise` looks like a word but means nothing."""
        if kind == "number":
            return str(self.random.randint(0, 200))
        if kind != "noise":
            return self.random.choice(self.material.words[kind])
        if self._happens(BABBLE_SHARE):
            return "".join(self._syllable() for _ in range(self.random.randint(1, 4)))
        start, end = (self.random.choice(self.material.vocabulary) for _ in range(2))
        return start[: self.random.randint(2, 5)] + end[-self.random.randint(2, 5) :]

    def _syllable(self) -> str:
        choice = self.random.choice
        return choice(CONSONANTS) + choice(VOWELS) + choice(["", "", choice(CONSONANTS)])

    def _framed(self, question: str) -> str:
        """The question, sometimes as part of a longer message."""
        question = self._sloppy(self._reworded(question))
        if self._happens(FRAME_SHARE):
            question = self._pick("before") + question[0].lower() + question[1:]
        if self._happens(FRAME_SHARE):
            question += self._pick("after")
        if self._happens(QUOTE_SHARE):
            count = self.random.randint(1, QUOTED_PARAGRAPHS)
            text = "\n\n".join(self.random.sample(self.material.prose, count))
            question = self._pick("quote").format(text, question)
        return question

    def _reworded(self, question: str) -> str:
        """The question, sometimes with some words swapped for synonyms."""
        for group in self.material.patterns["swap"]:
            if self._happens(SWAP_SHARE):
                another = self.random.choice(group.split("|"))
                question = re.sub(rf"\b({group})\b", another, question)
        return question

    def _sloppy(self, text: str) -> str:
        """The text, sometimes as if typed in a hurry."""
        if self._happens(SLOPPY_SHARE):
            text = text.lower()
        if self._happens(SLOPPY_SHARE):
            text = text.rstrip("?.!") or text
        if self._happens(TYPO_SHARE) and len(text) > 1:
            at = self.random.randrange(len(text) - 1)
            text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        return text

    def _pick(self, kind: str) -> str:
        return self.random.choice(self.material.patterns[kind])

    def _happens(self, share: float) -> bool:
        return self.random.random() < share


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}

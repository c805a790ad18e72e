"""Whether and how a request's answers reason, and where a grammar may begin after that."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from api.reasoning.answer_marks import MarkedAnswerReader
from api.reasoning.channels import ChannelReader
from api.reasoning.elements import ElementReader
from api.reasoning.formats import ReasoningFormat
from api.reasoning.reader import MarkedReasoningReader, ReasoningReader
from api.reasoning.switches import SWITCHES
from api.tools.parsing.output import SPACE
from api.tools.strict import ReasoningInGrammar
from engine.grammars.structural_tags import AnyText, TriggeredTags, read_structural_tag
from engine.request import Grammar, ReasoningMarks

JSON_KINDS = ("json_object", "json_schema")
_PARTS = re.compile(r"<\|\w+\|>|\w+| ")
_TAG = re.compile(r"[<\[][^<>\[\]]*[>\]]")
NOT_WRITTEN = ("excludes", "triggers")
FindToken = Callable[[str], int | None]
"""Looks up the single token that has this text, if there is one."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the answers to one request reason; shared by all its choices.

    `starts_open`: the answer begins within reasoning, because the prompt opened it or the model
    is known to do so. Without `include_reasoning`, clients do not get the reasoning.
    """

    reasoning_format: ReasoningFormat
    starts_open: bool
    include_reasoning: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Marks that must be detokenized as text, even if they are special tokens."""
        return self.reasoning_format.marks

    def grammar_start(
        self, find: FindToken
    ) -> tuple[ReasoningMarks | None, ReasoningInGrammar]:
        """Where a grammar of text and tool calls begins. No marks: it constrains the whole
        answer, reasoning included, as a call may end the reasoning or come before the last
        message, or as no token marks the end of the reasoning.
        """
        if self.reasoning_format.channels:
            return None, ReasoningInGrammar(channels=True, mid_message=self.starts_open)
        if self.reasoning_format.elements:
            return self.end_marks(find), ReasoningInGrammar()
        if (
            not self.reasoning_format.call_openings
            and (marks := self.end_marks(find)) is not None
        ):
            return marks, ReasoningInGrammar()
        tags = map(_TAG.match, (self.reasoning_format.opens, self.reasoning_format.closes))
        return None, ReasoningInGrammar([one[0] for one in tags if one])

    def without_call_openings(self) -> "Thinking":
        """The same settings for a grammar that begins after the reasoning: nodes know only its
        end marks, so a tool call's opening mark does not end it.
        """
        return replace(self, reasoning_format=replace(self.reasoning_format, call_openings=()))

    def reader(self) -> ReasoningReader:
        """A new reader, for one choice."""
        if self.reasoning_format.channels:
            return ChannelReader(self.starts_open, self.include_reasoning)
        if self.reasoning_format.elements:
            return ElementReader(self.starts_open, self.include_reasoning)
        thoughts = MarkedReasoningReader(
            self.reasoning_format, self.starts_open, self.include_reasoning
        )
        return (
            MarkedAnswerReader(thoughts, *self.reasoning_format.answer_marks)
            if self.reasoning_format.answer_marks
            else thoughts
        )

    def grammar_marks(
        self, grammar: Grammar, find: FindToken, *, calls: bool = False
    ) -> ReasoningMarks | None:
        """The token marks after which this grammar begins. None: it begins with the answer,
        because it has the closing mark in itself, or because the marks are not single tokens.
        If the grammar allows `calls`, the channels of calls are as free as reasoning.
        """
        return None if self._mentions_closing(grammar) else self.end_marks(find, calls=calls)

    def end_marks(self, find: FindToken, *, calls: bool = False) -> ReasoningMarks | None:
        """The token marks after which a grammar begins; None: a mark is not a single token."""
        if (close := self._tokens(self.reasoning_format.closes, find)) is None:
            return None
        others = () if self.reasoning_format.elements else self.reasoning_format.other_closings
        also = [self._tokens(one, find) for one in others]
        closes = (close, *filter(None, also))
        if self.starts_open:
            return ReasoningMarks(closes)
        opens, before = (
            self._tokens(self.reasoning_format.opens, find),
            find(self.reasoning_format.before_opening),
        )
        if opens is None:
            return None
        spaced = () if before is None else ((before, *opens),)
        call = (
            self._tokens(self.reasoning_format.call_header, find)
            if calls and self.reasoning_format.call_header
            else None
        )
        return ReasoningMarks(closes, (opens, *spaced, *filter(None, [call])))

    def _tokens(self, mark: str, find: FindToken) -> tuple[int, ...] | None:
        """A mark's tokens: one, or one for each of its parts if it has several."""
        parts = _PARTS.findall(mark) if self.reasoning_format.parts else [mark]
        tokens = [token for part in parts if (token := find(part)) is not None]
        return tuple(tokens) if len(tokens) == len(parts) else None

    def can_reason_within(self, grammar: Grammar) -> bool:
        """Whether a grammar of the whole answer leaves room for reasoning: only if the closing
        mark may occur in it.
        """
        if grammar.kind == "structural_tag":
            match read_structural_tag(grammar.source):
                case AnyText(excludes):
                    return self._allows_closing(excludes)
                case TriggeredTags(triggers, _, False, _, excludes):
                    return self._allows_closing((*triggers, *excludes))
        return self._mentions_closing(grammar)

    def _mentions_closing(self, grammar: Grammar) -> bool:
        """Whether the grammar can write the closing mark, and does not only exclude it."""
        texts: Iterable[str] = [grammar.source]
        if grammar.kind == "structural_tag":
            texts = _texts(msgspec.to_builtins(read_structural_tag(grammar.source)))
        elif grammar.kind in JSON_KINDS:
            return False
        return any(self.reasoning_format.closes in text.replace("\\", "") for text in texts)

    def _allows_closing(self, barred: Sequence[str]) -> bool:
        """Whether the closing mark may occur in free text that excludes these."""
        return not any(one in self.reasoning_format.closes for one in barred)


def _texts(tag: object) -> Iterator[str]:
    """The texts that a structural tag writes, without its excludes and triggers."""
    left = [tag]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as said:
                left += [value for key, value in said.items() if key not in NOT_WRITTEN]
            case list() | tuple() as said:
                left += said


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered chat: the prompt, the message that the answer continues (empty if it begins a
    new one), and the template `variables` from the client.
    """

    prompt: str
    continued: str
    variables: Mapping[str, object]


def thinking_of(
    form: ReasoningFormat, given: RenderedPrompt, *, tells: bool
) -> Thinking | None:
    """How the answers to this prompt reason; None if they do not. The prompt's end takes
    precedence over the model's default and the client's switch.
    """
    thinks = _prompt_state(form, given)
    if thinks is not None:
        marked = form.answer_marks or form.elements
        return Thinking(form, thinks, tells) if thinks or marked else None
    off = any(given.variables.get(switch) is False for switch in SWITCHES)
    return Thinking(form, form.starts_open and not off, tells)


def _prompt_state(form: ReasoningFormat, given: RenderedPrompt) -> bool | None:
    """Whether the prompt opened reasoning (True) or closed it; None: it has no mark."""
    end = given.prompt.rstrip(SPACE)
    if end.endswith(form.closings):
        return False
    if end.endswith(form.openings):
        return True
    if not given.continued:
        return None
    last = given.continued.rfind
    return max(map(last, form.openings)) > max(map(last, form.closings))

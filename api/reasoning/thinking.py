"""Whether answers may begin with reasoning: by their prompt, and by their model."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from api.reasoning.answers import AnswerReader
from api.reasoning.channels import ChannelReader
from api.reasoning.forms import Form
from api.reasoning.reader import ReasoningReader, ThoughtReader
from api.reasoning.switches import SWITCHES
from api.tools.dialects.harmony import MARKS
from api.tools.parsing.output import SPACE
from api.tools.strict import ReasoningInGrammar
from engine.grammars.structural_tags import AnyText, TriggeredTags, read_structural_tag
from engine.request import Grammar, ReasoningMarks

JSON_KINDS = ("json_object", "json_schema")
_PARTS = re.compile(r"<\|\w+\|>|\w+| ")
_TAG = re.compile(r"[<\[][^<>\[\]]*[>\]]")
UNSAID = ("excludes", "triggers")
Find = Callable[[str], int | None]
"""The token that is this text, if there is one."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """Shared by all choices of a request. `begun`: the prompt ends in the middle of it, or the
    model is known to begin with it. Clients are told of it only if it `tells`.
    """

    form: Form
    begun: bool
    tells: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """To be text, special tokens or not."""
        if self.form.channels:
            return MARKS
        return self.form.marks

    def beside(self, find: Find) -> tuple[ReasoningMarks | None, ReasoningInGrammar]:
        """Where a grammar of text and calls begins. No marks: it holds all of the answer, with
        reasoning in it, as calls may end that, come before its last message, or tokens do not
        tell where it ends.
        """
        if self.form.channels:
            return None, ReasoningInGrammar(channels=True, mid_message=self.begun)
        if not self.form.calls and (marks := self.places(find)) is not None:
            return marks, ReasoningInGrammar()
        tags = map(_TAG.match, (self.form.opens, self.form.closes))
        return None, ReasoningInGrammar([one[0] for one in tags if one])

    def held(self) -> "Thinking":
        """Where a grammar begins behind it: nodes know of no marks of calls, so these end
        nothing.
        """
        return replace(self, form=replace(self.form, calls=()))

    def reader(self) -> ReasoningReader:
        """For one choice."""
        if self.form.channels:
            return ChannelReader(self.begun, self.tells)
        thoughts = ThoughtReader(self.form, self.begun, self.tells)
        return AnswerReader(thoughts, *self.form.around) if self.form.around else thoughts

    def marks(
        self, grammar: Grammar, find: Find, *, calls: bool = False
    ) -> ReasoningMarks | None:
        """Behind which a grammar that can be served begins. None: with the answer, as it speaks
        of the closing mark itself, or as marks that are no tokens cannot be seen for sure. If
        it leaves room for `calls`, channels in which they are made are as free as reasoning.
        """
        return None if self._is_spoken_of(grammar) else self.places(find, calls=calls)

    def places(self, find: Find, *, calls: bool = False) -> ReasoningMarks | None:
        """Those behind which any grammar begins. None: they are no tokens."""
        if (close := self._tokens(self.form.closes, find)) is None:
            return None
        also = [self._tokens(one, find) for one in self.form.also]
        closes = (close, *filter(None, also))
        if self.begun:
            return ReasoningMarks(closes)
        opens, before = self._tokens(self.form.opens, find), find(self.form.before)
        if opens is None:
            return None
        spaced = () if before is None else ((before, *opens),)
        call = self._tokens(self.form.calling, find) if calls and self.form.calling else None
        return ReasoningMarks(closes, (opens, *spaced, *filter(None, [call])))

    def _tokens(self, mark: str, find: Find) -> tuple[int, ...] | None:
        """One, or of a header each of its marks and what is between them."""
        parts = _PARTS.findall(mark) if self.form.channels else [mark]
        tokens = [token for part in parts if (token := find(part)) is not None]
        return tuple(tokens) if len(tokens) == len(parts) else None

    def has_room(self, grammar: Grammar) -> bool:
        """Where a grammar that can be served holds all of the answer: only one in which the
        closing mark may come has room for reasoning.
        """
        if grammar.kind == "structural_tag":
            match read_structural_tag(grammar.source):
                case AnyText(excludes):
                    return self._may_come(excludes)
                case TriggeredTags(triggers, _, False, _, excludes):
                    return self._may_come((*triggers, *excludes))
        return self._is_spoken_of(grammar)

    def _is_spoken_of(self, grammar: Grammar) -> bool:
        """Whether the grammar has the closing mark in it, and not only to bar it."""
        texts: Iterable[str] = [grammar.source]
        if grammar.kind == "structural_tag":
            texts = _texts(msgspec.to_builtins(read_structural_tag(grammar.source)))
        elif grammar.kind in JSON_KINDS:
            return False
        return any(self.form.closes in text.replace("\\", "") for text in texts)

    def _may_come(self, barred: Sequence[str]) -> bool:
        """The closing mark, in free text without these."""
        return not any(one in self.form.closes for one in barred)


def _texts(tag: object) -> Iterator[str]:
    """What a structural tag says, but for what it bars and what only begins a tag."""
    left = [tag]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as said:
                left += [value for key, value in said.items() if key not in UNSAID]
            case list() | tuple() as said:
                left += said


@dataclass(frozen=True, slots=True)
class Given:
    """What the model has before it: the prompt, and of that the message it continues, empty
    where it begins one. `variables` are those that the client gave to the template.
    """

    prompt: str
    continued: str
    variables: Mapping[str, object]


def thinking_of(form: Form, given: Given, *, tells: bool) -> Thinking | None:
    """None where nothing is reasoning, and no marks are around the content. What the prompt's
    end says goes before all else.
    """
    thinks = _thinks(form, given)
    if thinks is not None:
        return Thinking(form, thinks, tells) if thinks or form.around else None
    off = any(given.variables.get(switch) is False for switch in SWITCHES)
    return Thinking(form, form.begun and not off, tells)


def _thinks(form: Form, given: Given) -> bool | None:
    """Whether the prompt has begun reasoning, or ended it; None: it says nothing."""
    end = given.prompt.rstrip(SPACE)
    if end.endswith(form.closings):
        return False
    if end.endswith(form.openings):
        return True
    if not given.continued:
        return None
    last = given.continued.rfind
    return max(map(last, form.openings)) > max(map(last, form.closings))

"""Whether answers may begin with reasoning: by their prompt, and by their model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from api.reasoning.forms import Form
from api.reasoning.reader import ThoughtReader
from api.tools.tape import SPACE
from engine.grammars.structural_tags import AnyText, TriggeredTags, read_structural_tag
from engine.request import Grammar

SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable with which a client says whether the model is to think."""
JSON_KINDS = ("json_object", "json_schema")


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
        return self.form.opens, self.form.closes

    def reader(self) -> ThoughtReader:
        """For one choice."""
        return ThoughtReader(self.form, self.begun, self.tells)

    def has_room(self, grammar: Grammar | None) -> bool:
        """A grammar that can be served holds all of the answer: only one in which the closing
        mark may come has any.
        """
        if grammar is None:
            return True
        if grammar.kind == "structural_tag":
            match read_structural_tag(grammar.source):
                case AnyText(excludes):
                    return self._may_come(excludes)
                case TriggeredTags(triggers, _, False, _, excludes):
                    return self._may_come((*triggers, *excludes))
        unescaped = grammar.source.replace("\\", "")
        return grammar.kind not in JSON_KINDS and self.form.closes in unescaped

    def _may_come(self, barred: Sequence[str]) -> bool:
        """The closing mark, in free text without these."""
        return not any(one in self.form.closes for one in barred)


@dataclass(frozen=True, slots=True)
class Given:
    """What the model has before it: the prompt, and of that the message it continues, empty
    where it begins one. `variables` are those that the client gave to the template.
    """

    prompt: str
    continued: str
    variables: Mapping[str, object]


def thinking_of(form: Form, given: Given, *, tells: bool) -> Thinking | None:
    """None where nothing is reasoning. What the prompt's end says goes before all else."""
    thinks = _thinks(form, given)
    if thinks is not None:
        return Thinking(form, True, tells) if thinks else None
    off = any(given.variables.get(switch) is False for switch in SWITCHES)
    return Thinking(form, form.begun and not off, tells)


def _thinks(form: Form, given: Given) -> bool | None:
    """Whether the prompt has begun reasoning, or ended it; None: it says nothing."""
    end = given.prompt.rstrip(SPACE)
    if end.endswith(form.closes):
        return False
    if end.endswith(form.opens):
        return True
    if not given.continued:
        return None
    return given.continued.rfind(form.opens) > given.continued.rfind(form.closes)

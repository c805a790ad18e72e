"""Steps that read the keys of arguments: those that a schema names, whatever they look like."""

from collections.abc import Collection, Container

from api.tools.parsing.output import SPACE, NotACall, TextSteps
from api.tools.parsing.steps import TAG, literal, skip_space, word_until


def key_before(end: str, known: Collection[str]) -> TextSteps:
    """Returns the key of an argument before the `end`: a known one, whatever its characters
    are, or else a word without tags. Raises NotACall.
    """
    read = ""
    while any(f"{one}{end}".startswith(read) for one in known):
        if read.endswith(end) and (key := read.removesuffix(end)) in known:
            return key
        read += yield
    key, begun, others = read.partition(end[0])
    if TAG in key or not end.startswith(begun + others):
        raise NotACall
    if not begun:
        return key + (yield from word_until(end))
    for missing in end.removeprefix(begun + others):
        yield from literal((yield), missing)
    return key


def key_until(
    letter: str, end: str, known: Collection[str], letters: Container[str]
) -> TextSteps:
    """Returns the key of an argument: a known one, whatever its characters are, or else a name
    of these letters. White space and the `end` may follow it. Raises NotACall.
    """
    key = ""
    while letter in letters or any(one.startswith(key + letter) for one in known):
        key += letter
        letter = yield
    if letter in SPACE:
        letter = yield from skip_space()
    yield from literal(letter, end)
    if key not in known and not ((key := key.rstrip(SPACE)) and all(x in letters for x in key)):
        raise NotACall
    return key

"""The first exception of a kind in an exception group.

Not by `except*`: in early releases of Python 3.11, what is raised there comes out in a group.
"""

from typing import TypeVar

Kind = TypeVar("Kind", bound=Exception)


def first_failure(group: BaseExceptionGroup[BaseException], *kinds: type[Kind]) -> Kind | None:
    """The first failure of one of these kinds, however deep it is in the group."""
    for one in group.exceptions:
        if isinstance(one, kinds):
            return one
        if isinstance(one, BaseExceptionGroup) and (found := first_failure(one, *kinds)):
            return found
    return None

"""A failure that is kept has no frames, however it came about: they hold whole requests."""

from proxy.errors import without_frames


def raised(failure: Exception, cause: Exception | None = None) -> Exception:
    """It has been raised, so it has a traceback."""
    try:
        raise failure from cause
    except Exception as caught:  # noqa: BLE001
        return caught


def test_what_led_to_it_has_none_either() -> None:
    first = raised(ValueError("no JSON"))
    second = raised(OSError("a bad frame"), first)
    third = raised(RuntimeError("a bad node"), second)
    assert without_frames(third) is third
    assert [one.__traceback__ for one in (first, second, third)] == [None] * 3
    assert (third.__cause__, second.__cause__) == (second, first)


def test_nor_has_what_was_being_handled() -> None:
    first, second = raised(ValueError("no JSON")), raised(OSError("a bad node"))
    second.__context__ = first
    without_frames(second)
    assert first.__traceback__ is None


def test_two_that_led_to_each_other_are_read_once() -> None:
    first = raised(ValueError("no node"))
    second = raised(OSError("a bad node"), first)
    first.__context__ = second
    without_frames(second)
    assert (first.__traceback__, second.__traceback__) == (None, None)
